// The review of a change of plain git: its diff, file by file, people's remarks, and approval.
import { api, el, fetched, sent, table, showError } from "./page.js";
import { button, may } from "./acts.js";
import { keep } from "./live.js";
import { remarked } from "./linecomments.js";
import { odd } from "./odd.js";
import { rows } from "./patch.js";

const STATUS = { A: "added", D: "deleted", M: "changed", R: "renamed", C: "copied", T: "type changed" };
const MODES = { "100644": "file", "100755": "executable file", "120000": "link", "160000": "submodule", "000000": "nothing" };
const OPEN_AT_FIRST = 15, OPEN_BYTES = 200000, EVERY_MS = 15000;
const wideEnough = matchMedia("(min-width: 75rem)");
const SIDE_KEY = "headgate-side-by-side";
const at = (ms) => el("time", { datetime: new Date(ms).toISOString() }, new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" }).format(new Date(ms)));
const bytes = (n) => (n < 10000 ? `${n.toLocaleString()} B` : n < 10 ** 7 ? `${Math.round(n / 1000).toLocaleString()} kB` : `${Math.round(n / 10 ** 6).toLocaleString()} MB`);

export class Review {
  constructor(place, names, ref) {
    this.place = place;
    this.names = names;
    this.ref = ref;
    this.remarks = [];
    this.comments = []; // comments of jobs on lines
    this.files = new Map();
    this.before = Promise.resolve();
    this.one = "";
    this.wide = localStorage.getItem(SIDE_KEY) === "yes";
    this.list = el("div", { class: "files" });
    this.head = el("div");
    this.talk = el("div", { class: "talk" });
    this.status = el("p", { class: "note", role: "status" }, "Reading the changes…");
  }

  query(more) { return new URLSearchParams({ ...this.names, ...(this.one ? { commit: this.one } : {}), ...more }); }

  async begin() {
    this.place.replaceChildren(el("h2", {}, "Diff"), this.status, this.head, this.list, el("h2", {}, "Remarks"), this.talk);
    wideEnough.addEventListener("change", () => this.redraw());
    await this.load();
    this.listen();
  }

  // Runs until a later patchset replaces this one.
  listen() {
    keep(async () => {
      if (!this.talk.isConnected) return null;
      // Do not redraw while somebody writes, as their text would be lost.
      if (!this.place.querySelector("form.say")) await this.hear();
      return EVERY_MS;
    }, () => {});
  }

  async load() {
    this.status.hidden = false;
    this.list.replaceChildren();
    this.files.clear();
    try { this.review = await fetched(`${api}/review?${this.query({})}`); } catch (error) { this.status.textContent = error.message; return; }
    if (!this.one) this.commits = this.review.commits;
    this.status.hidden = true;
    this.head.replaceChildren(...this.top());
    this.add(this.review.files);
  }

  top() {
    const { review } = this, chosen = this.one, shown = this.commits ?? [];
    const pick = el("select", { id: "which-commit", onchange: () => { this.one = pick.value; this.load(); } }, el("option", { value: "" }, review.landed ? "The last commit" : shown.length === 1 ? "The commit" : `All ${shown.length}${review.more_commits ? " or more" : ""} commits`),
      shown.length > 1 ? shown.map((one) => el("option", { value: one.id, selected: one.id === chosen }, `${one.id.slice(0, 8)} ${one.subject}`.slice(0, 100))) : []);
    const side = el("input", { type: "checkbox", checked: this.wide, onchange: () => { this.wide = side.checked; localStorage.setItem(SIDE_KEY, side.checked ? "yes" : "no"); this.redraw(); } });
    const all = el("button", { type: "button", onclick: () => this.unfold() }, "Unfold all");
    return [
      review.landed ? el("p", { class: "note" }, "The change has landed: only its last commit is shown.") : "",
      this.acts(),
      shown.length ? el("details", {}, el("summary", {}, shown.length === 1 ? "1 commit" : `${shown.length}${review.more_commits ? " or more" : ""} commits`), table(["Commit", "Subject", "Author", "When"], shown.map((one) => [el("code", {}, one.id.slice(0, 8)), el("span", {}, odd(one.subject), one.parents.length > 1 ? el("span", { class: "small" }, " a merge") : ""), el("span", {}, odd(one.author)), one.at_s ? at(one.at_s * 1000) : ""]))) : "",
      el("div", { class: "tools" }, el("label", { for: "which-commit" }, "Show "), pick, wideEnough.matches ? el("label", {}, side, " Side by side") : "", review.total ? all : "", el("span", { class: "small" }, `${review.total.toLocaleString()} ${review.total === 1 ? "file differs" : "files differ"}${review.base ? ` from ${review.base.slice(0, 8)}` : ""}`)),
    ].filter(Boolean);
  }

  acts() {
    const { review, ref } = this, { approving } = review, mine = this.approved(approving.who), what = ref.subject || ref.id;
    const send = (verb, more) => ({ reason }) => sent("POST", `${api}/${verb}`, { ...this.names, patchset: review.commit, reason, ...more });
    const done = () => this.hear().then(() => this.head.replaceChildren(...this.top()));
    const exactly = `This approves exactly the commit ${review.commit}. A later patchset needs another approval.`;
    const bar = el("div", { class: "acts" });
    if (review.landed || ref.state !== "open") return bar;
    if (approving.may) bar.append(
      button({ permission: "approve", label: "Approve", title: `Approve ${what} as ${approving.who}?`, verb: "Approve it", what: `${exactly} Each pipeline that waits for this approval tests the change, and may land it. The requirements of a pipeline decide whether the approval counts; some ignore those of the proposer.`, send: send("approve", {}), done }),
      ...(mine ? [button({ permission: "approve", label: "Withdraw approval", title: `Withdraw your approval of ${what}?`, verb: "Withdraw it", what: "The change leaves the queues of pipelines that need the approval, and the changes behind it are tested again without it.", send: send("approve", { withdraw: true }), done })] : []));
    else may("approve").then((granted) => { if (granted) bar.append(el("p", { class: "note" }, `You cannot approve this change on this page: ${approving.why}. To approve by a push:`, " ", el("code", {}, approving.command))); });
    if (review.may_recheck) bar.append(button({ permission: "enqueue", label: "Test again", title: `Test ${what} again?`, verb: "Test it again", what: "The change is enqueued as when it was proposed and, if it is approved, as when it was approved. Pipelines that are already testing it ignore this. Nothing else is tested again.", send: send("recheck", {}), done }));
    bar.append(el("details", { class: "command" }, el("summary", {}, "Approve by a push"), el("pre", {}, approving.command)));
    return bar;
  }

  approved(who) { return this.remarks.filter((one) => one.word && one.verified && one.who === who && one.commit === this.review.commit).at(-1)?.word === "approved"; }

  // --- files

  add(files, page = 0) {
    let room = OPEN_BYTES, count = this.files.size;
    for (const file of files) {
      const view = this.file(file);
      this.files.set(file.number, view);
      this.list.append(view.node);
      room -= file.old_bytes + file.new_bytes;
      if (count++ < OPEN_AT_FIRST && room > 0) view.node.open = true;
    }
    const left = this.review.total - this.files.size;
    if (left > 0) {
      const more = el("button", { type: "button", onclick: async () => {
        more.disabled = true;
        try { const next = await fetched(`${api}/review?${this.query({ page: page + 1 })}`); more.remove(); this.add(next.files, page + 1); } catch (error) { more.textContent = error.message; }
      } }, `Show more files (${left.toLocaleString()})`);
      this.list.append(more);
    }
    if (!this.review.total) this.list.append(el("p", { class: "empty" }, "The change has no differences."));
  }

  unfold() { for (const { node } of [...this.files.values()].slice(0, 50)) node.open = true; }

  file(file) {
    const moved = file.old_path ? [...odd(file.old_path), " → "] : [];
    const mode = file.old_mode !== file.new_mode ? file.status === "A" ? MODES[file.new_mode] !== "file" ? `a new ${MODES[file.new_mode] ?? file.new_mode}` : "" : file.status === "D" ? "" : `${MODES[file.old_mode] ?? file.old_mode} (${file.old_mode}) → ${MODES[file.new_mode] ?? file.new_mode} (${file.new_mode})` : "";
    const size = file.status === "A" ? bytes(file.new_bytes) : file.status === "D" ? bytes(file.old_bytes) : file.old_bytes === file.new_bytes ? bytes(file.new_bytes) : `${bytes(file.old_bytes)} → ${bytes(file.new_bytes)}`;
    const talk = el("span", { class: "small" }), body = el("div", { class: "patch", tabindex: "0", role: "group", "aria-label": "Differences" });
    const node = el("details", { class: "file card" }, el("summary", {}, el("span", { class: `result ${file.status === "A" ? "good" : file.status === "D" ? "bad" : "busy"}` }, STATUS[file.status] ?? file.status), " ", el("code", {}, moved, odd(file.path)), " ", el("span", { class: "small" }, [mode, file.old_mode === "160000" || file.new_mode === "160000" ? "" : size].filter(Boolean).join("; ")), " ", talk), body);
    const view = { file, node, body, talk, parts: [], more: false, begun: false };
    node.addEventListener("toggle", () => { if (node.open && !view.begun) { view.begun = true; this.part(view); } });
    return view;
  }

  async part(view) {
    const { file, body } = view;
    if (file.old_mode === "160000" || file.new_mode === "160000") { body.replaceChildren(el("p", { class: "note" }, `A submodule: ${file.old.slice(0, 12)} → ${file.new.slice(0, 12)}`)); return; }
    const waits = el("p", { class: "note", role: "status" }, "Reading…");
    body.append(waits);
    try {
      const part = await this.next(() => fetched(`${api}/patch?${this.query({ file: file.number, part: view.parts.length })}`));
      view.parts.push(part);
      view.more = part.more;
      this.draw(view, view.parts.length - 1);
    } catch (error) {
      const wrong = el("p", { class: "note bad", role: "alert" }, error.message, " ", el("button", { type: "button", onclick: () => { wrong.remove(); this.part(view); } }, "Try again"));
      body.append(wrong);
    }
    waits.remove();
  }

  // Request one file after the other, as the server limits simultaneous requests.
  next(ask) {
    const pending = this.before.then(() => ask().catch((error) => { if (error.status) throw error; return ask(); }));
    this.before = pending.catch(() => null);
    return pending;
  }

  draw(view, from = 0) {
    const { body, file } = view, wide = this.wide && wideEnough.matches;
    if (!from) body.replaceChildren();
    body.querySelector(":scope > button")?.remove();
    view.parts.slice(from).forEach((part) => {
      const spot = (side, number) => (this.review.may_comment ? el("button", { type: "button", "aria-label": `Comment on line ${number} ${side === "old" ? "before" : "after"}`, onclick: (event) => this.write(event.currentTarget.closest(".line, .two").parentNode.matches(".two") ? event.currentTarget.closest(".two") : event.currentTarget.closest(".line"), { file: file.path, side, line: number }) }, String(number)) : String(number));
      if (part.binary) body.append(el("p", { class: "note" }, "Binary file: differences are not shown."));
      else if (!part.lines.length) body.append(el("p", { class: "note" }, "The content is the same."));
      else body.append(el("div", { class: wide ? "lines wide" : "lines" }, rows(part.lines, wide, spot)));
      if (part.ends) body.append(el("p", { class: "note" }, part.ends));
    });
    if (view.more) body.append(el("button", { type: "button", onclick: (event) => { event.currentTarget.disabled = true; this.part(view); } }, "Show more of this file"));
    this.place_remarks(view);
  }

  redraw() {
    this.head.replaceChildren(...this.top());
    for (const view of this.files.values()) if (view.parts.length) this.draw(view);
  }

  // --- remarks

  async hear() {
    try {
      const jobs = this.review ? fetched(`${api}/file-comments?${new URLSearchParams({ project: this.names.project, patchset: this.review.commit })}`).catch(() => this.comments) : [];
      const [{ remarks, more, unread }, comments] = await Promise.all([fetched(`${api}/remarks?${new URLSearchParams(this.names)}`), jobs]);
      const now = JSON.stringify([remarks, comments]);
      if (now === this.heard) return;
      this.heard = now;
      this.remarks = remarks;
      this.comments = comments;
      for (const view of this.files.values()) this.place_remarks(view);
      this.all(more, unread);
    } catch (error) { this.talk.replaceChildren(el("p", { class: "note bad" }, error.message)); }
  }

  threads(of) {
    const answers = new Map();
    for (const one of this.remarks) if (one.reply) answers.set(one.reply, [...(answers.get(one.reply) ?? []), one]);
    return this.remarks.filter((one) => !one.reply && of(one)).map((one) => [one, ...(answers.get(one.id) ?? [])]);
  }

  // Only verified remarks resolve a thread: anybody who may push notes could write an unsigned one.
  settled(thread) { return thread.filter((one) => one.verified && one.resolved !== null).at(-1)?.resolved === true; }

  place_remarks(view) {
    const threads = this.threads((one) => one.file === view.file.path && one.commit === this.review.commit);
    const comments = this.comments.filter((one) => one.path === view.file.path);
    const counted = (n, one) => (n ? `${n} ${n === 1 ? one : `${one}s`}` : "");
    view.talk.textContent = [counted(threads.length, "remark"), counted(comments.length, "job comment")].filter(Boolean).join(", ");
    view.body.querySelectorAll(".thread, .jobremark").forEach((one) => one.remove());
    this.place_comments(view, comments);
    for (const thread of threads) {
      const [{ side, line }] = thread;
      const row = line ? view.body.querySelector(`.lines > [data-${side === "old" ? "old" : "new"}="${Number(line)}"]`) : null;
      if (row) row.after(this.thread(thread));
    }
  }

  // Comments of jobs are below their lines; those on the file, or on a line that is not shown, are above the diff.
  place_comments(view, comments) {
    const last = new Map(), above = comments.filter((one) => {
      const row = one.line ? view.body.querySelector(`.lines > [data-new="${Number(one.line)}"]`) : null, node = remarked(one, true);
      if (row) (last.get(row) ?? row).after(node);
      last.set(row, node);
      return !row;
    });
    view.body.prepend(...above.map((one) => { const node = remarked(one, true); if (one.line) node.prepend(el("span", { class: "small" }, `line ${one.line}: `)); return node; }));
  }

  /**
   * @param {any[]} thread
   * @param {HTMLElement | string} [where]
   */
  thread(thread, where = "") {
    const settled = this.settled(thread), [first] = thread;
    const node = el("div", { class: `thread card${settled ? " settled" : ""}` }, where ? el("p", { class: "small" }, where) : "", thread.map((one) => this.remark(one)));
    if (this.review?.may_comment && first.commit === this.review.commit) node.append(el("div", { class: "acts" },
      el("button", { type: "button", class: "act", onclick: (event) => this.write(event.currentTarget.parentNode, { reply: first.id }) }, "Reply"),
      el("button", { type: "button", class: "act", onclick: (event) => this.say({ reply: first.id, resolved: !settled }, event.currentTarget) }, settled ? "Reopen" : "Resolve")));
    return node;
  }

  remark(one) {
    const verdict = one.word ? el("p", {}, el("span", { class: `result ${one.word === "approved" ? "good" : "mute"}` }, one.word === "approved" ? "approved this commit" : "withdrew the approval"), one.text ? ": " : "", odd(one.text)) : one.text ? el("p", { class: "remarktext" }, odd(one.text)) : "";
    return el("div", { class: "remark" }, el("p", { class: "small" }, el("b", {}, odd(one.who)), one.verified ? "" : el("span", { class: "result bad", title: "There is no proof of who wrote this." }, " unverified"), " ", at(one.at), this.review && one.commit !== this.review.commit ? ` of the patchset ${one.commit.slice(0, 8)}` : "", one.resolved === true ? " resolved it" : one.resolved === false ? " reopened it" : ""), verdict);
  }

  all(more, unread) {
    const threads = this.threads(() => true).map((thread) => {
      const [{ file, line, side }] = thread;
      return this.thread(thread, file ? el("span", {}, odd(file), line ? `, line ${line}${side === "old" ? " before" : ""}` : "") : "");
    });
    const write = this.review?.may_comment ? el("button", { type: "button", onclick: () => this.write(write, {}) }, "Comment") : null;
    this.talk.replaceChildren(...[threads.length ? threads : el("p", { class: "empty" }, "No remarks yet."), more ? el("p", { class: "note" }, `${more.toLocaleString()} later remarks are not shown.`) : "", unread.length ? el("p", { class: "note bad" }, `The remarks on ${unread.map((one) => one.slice(0, 8)).join(", ")} are not shown, as there are too many.`) : "", write ?? ""].flat().filter(Boolean));
  }

  write(after, about) {
    this.place.querySelector("form.say")?.remove();
    const text = el("textarea", { rows: 4, required: true, maxlength: 10000, "aria-label": about.line ? `Your remark on line ${about.line}` : "Your remark" });
    const wrong = el("p", { class: "note bad", role: "alert" }), go = el("button", { class: "go" }, "Send");
    const form = el("form", { class: "say card" }, text, wrong, el("div", { class: "tools" }, go, el("button", { type: "button", onclick: () => form.remove() }, "Cancel")));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      wrong.textContent = "";
      if (await this.say({ ...about, text: text.value }, go, wrong)) form.remove();
    });
    form.addEventListener("keydown", (event) => { if (event.key === "Escape") form.remove(); });
    after.after(form);
    text.focus();
  }

  async say(about, knob, wrong) {
    knob.disabled = true;
    try {
      await sent("POST", `${api}/remark`, { ...this.names, patchset: this.review.commit, ...about });
      await this.hear();
      return true;
    } catch (error) {
      if (wrong) wrong.textContent = error.message; else showError(error);
      return false;
    } finally { knob.disabled = false; }
  }
}
