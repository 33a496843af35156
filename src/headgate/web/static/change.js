// When a change will land: its places in queues, what it still lacks, what it needs, and its results so far.
import { request as answered, busy, keep, renew } from "./live.js";
import { about, api, copy, el, facts, instant, linked, main, nav, ofIt, outside, table, tenant, took, showError, when, word, link } from "./page.js";
import { Review } from "./review.js";

nav("changes", "Change");
const query = new URLSearchParams(location.search), EVERY_MS = 10000;
const base = `/t/${encodeURIComponent(tenant)}`, body = el("div"), files = el("section", { "aria-label": "Review" });
main.append(body, files);

const soon = (place) => (place.remaining_time === null ? "unknown yet" : place.remaining_time === 0 ? "any moment" : `in about ${took(place.remaining_time)}`);
const STATES = { open: "is proposed", landed: "has landed", closed: "is closed" };

function answer(change, sets) {  // one sentence: when the change lands, or why it does not
  if (change.state !== "open") return el("p", { class: "answer" }, `The change ${STATES[change.state]}${change.reason ? `: ${change.reason}` : "."}`);
  const gate = change.places.find((place) => change.lacks.some((one) => one.pipeline === place.pipeline));
  if (gate) return el("p", { class: "answer" }, gate.failing_reasons.length ? `The change will not land from ${gate.pipeline}: ${gate.failing_reasons.join(", ")}.` : `The change lands from ${gate.pipeline} ${gate.remaining_time === null ? "at an unknown time" : soon(gate)}${gate.position > 1 ? `; ${gate.position - 1} ahead of it` : ""}.`);
  const nearest = change.lacks.find((one) => !one.lacks.length);
  const last = nearest && sets.find((set) => set.result && set.pipeline === nearest.pipeline && set.refs.some((ref) => ref.patchset === change.ref.patchset));
  if (last) return el("p", { class: "answer" }, "The last run of this patchset in ", nearest.pipeline, " ended with ", el("a", { href: `${base}/buildset/${last.uuid}` }, word(last.result)), ". A new patchset, or a request to test it again, starts the next.");
  if (nearest) return el("p", { class: "answer" }, `The change meets all requirements of ${nearest.pipeline} that Headgate knows; it enters with the next event that triggers the pipeline.`);
  if (change.lacks.length) return el("p", { class: "answer" }, `The change cannot enter ${change.lacks[0].pipeline} yet: ${change.lacks[0].lacks.map((line) => ofIt(change.ref, line)).join("; ")}.`);
  return el("p", { class: "answer" }, "No pipeline of this tenant lands changes of its project.");
}

const others = (change, title, found, none) => (found.length ? [el("h2", {}, title), table(["Change", "State", "In pipelines"], found.map((one) => [el("span", { class: one.depth > 1 ? "deeper" : "" }, one.ref ? about(one.ref) : one.key, change.circle.includes(one.key) ? el("span", { class: "small" }, " they need each other") : one.depth > 1 ? el("span", { class: "small" }, " needed indirectly") : ""),
  el("span", { class: `result ${one.state === "landed" ? "good" : one.state === "open" ? "busy" : "bad"}` }, one.state), one.pipelines.join(", ")]), none)] : []);

// The changes of a circular dependency.
const together = (change) => (change.circle.length ? el("ul", { class: "plain" }, change.needs.filter((one) => change.circle.includes(one.key)).map((one) => el("li", {}, about(one.ref)))) : "");

const words = (votes) => votes.map((one) => `${one.who}${one.current ? "" : " (of an older patchset)"}`).join(", ");

function shown(change, sets) {
  const { ref } = change;
  document.title = `${ref.topic || ref.id} ${change.state} · Headgate`;
  return [
    el("h1", {}, ref.subject || ref.id, " ", el("span", { class: `result ${change.state === "landed" ? "good" : change.state === "open" ? "busy" : "mute"}` }, change.state)),
    answer(change, sets),
    facts([["Change", ref.url ? outside(ref.url, ref.id) : ref.id], ["Project", link("project", ref.project_canonical, ref.project)], ["Branch", ref.branch], ["Patchset", ref.patchset ? [el("code", {}, ref.patchset.slice(0, 12)), " ", copy(ref.patchset, "the id of the patchset")] : ""], ["Author", ref.owner], ["Proposed by", ref.proposers.join(", ")],
      ["Approved by", words(change.approvals) || (change.approved ? "yes" : "")], ["Vetoes", words(change.vetoes)], ["Tested together with", together(change)], ["Labels", change.labels.join(", ")], ["Draft", change.draft ? "yes" : ""], ["Conflicts", change.mergeable === false ? `with ${ref.branch}` : ""], ["Unresolved footers", change.unresolved.join(", ")],
      ["Files", change.files === null ? "" : el("details", {}, el("summary", {}, `${change.files.length}${change.files.length < 1000 ? "" : " or more"} changed`), el("ul", { class: "plain" }, change.files.map((file) => el("li", {}, el("code", {}, file)))))]]),
    ...(change.lacks.some((one) => one.lacks.length) ? [el("h2", {}, "Missing requirements"), table(["Pipeline", "Missing"], change.lacks.filter((one) => one.lacks.length).map((one) => [link("status", one.pipeline, one.pipeline), el("ul", { class: "plain" }, one.lacks.map((line) => el("li", {}, ofIt(ref, line))))]))] : []),
    ...(change.places.length ? [el("h2", {}, "In pipelines"), table(["Pipeline", "Place", "Waits for", "Lands", "Estimated from", "Waiting for"], change.places.map((place) => [link("status", place.pipeline, place.pipeline), `${place.position} in ${place.queue}`, place.failing_reasons.join(", ") || place.phase || (place.active ? "its jobs" : "its turn"), soon(place),
      el("span", {}, place.basis, place.buildsets && place.resets ? `; ${Math.round(100 * place.resets / place.buildsets)} % of recent buildsets were reset` : ""), el("span", {}, took(Date.now() - place.enqueue_time))]))] : []),
    ...others(change, "Changes it needs", change.needs), ...others(change, "Changes that need it", change.needed_by),
    el("h2", {}, "Results"), table(["Pipeline", "Result", "Patchset", "Took", "Ended"], sets.map((set) => [set.pipeline, el("span", {}, el("a", { href: `${base}/buildset/${set.uuid}` }, word(set.result)), set.final || set.result === null ? "" : el("span", { class: "small" }, " superseded")), el("code", {}, (set.refs[0].patchset ?? "").slice(0, 8)),
      set.event_timestamp && set.last_build_end_time ? took(+instant(set.last_build_end_time) - +instant(set.event_timestamp)) : "", when(set.last_build_end_time)]), "Nothing yet."),
    el("h2", {}, "Message"), el("pre", {}, linked(change.message))];
}

let drawn = "", reviewed = "";
function review(ref, named) {
  const is = `${ref.patchset} ${named}`;
  if (is === reviewed || !/^[0-9a-f]{40}$/.test(ref.patchset ?? "") || !ref.ref.startsWith("refs/for/")) return;
  if (reviewed && files.querySelector("form.say")) return;  // do not interrupt somebody who writes
  reviewed = is;
  new Review(files, { project: ref.project_canonical, change: `${ref.branch}/${ref.change}` }, { ...ref, state: named }).begin();
}

const read = async (path, query, signal) => (await answered(`${api}/${path}?${new URLSearchParams(query)}`, { signal })).json();
keep(async (signal) => {
  const change = await read("change", { project: query.get("project") ?? "", change: query.get("change") ?? "" }, signal), { ref } = change;
  const sets = await read("buildsets", { project: ref.project_canonical, branch: ref.branch, change: String(ref.change), limit: "50" }, signal);
  const content = JSON.stringify([change, sets]);
  if (content !== drawn && !(drawn && busy(body))) {
    renew(body, shown(change, sets));
    drawn = content;
  }
  review(ref, change.state);
  return EVERY_MS;
}, (error) => { body.replaceChildren(); files.replaceChildren(); showError(error); });
