// Buttons for manual actions: a button is shown to people with the permission, and asks for confirmation and a reason.
import { api, el, fetched, login, sent, tenant, token } from "./page.js";

const authorizations = (place) => fetched(place).then((answer) => answer.zuul).catch(() => null);
const known = login.then(({ name }) => (token() || name ? Promise.all([tenant ? authorizations(`${api}/authorizations`) : null, authorizations("/api/authorizations")]) : [null, null]));

// Whether the person has the permission; `*` means administration of the entire system.
export async function may(permission) {
  const [here, everywhere] = await known;
  return permission === "*" ? Boolean(everywhere?.admin) : Boolean(here?.permissions?.[permission]);
}

// Make a button; `act`: {permission, label, title, what, fields, verb, send, done}. It opens a dialog, which Esc closes.
export function button(act) {
  const node = el("button", { type: "button", class: "act", hidden: true, onclick: (event) => { event.stopPropagation(); ask(act, node); } }, act.label);
  if (act.name) node.setAttribute("aria-label", act.name);
  // Hiding is only a courtesy: the server checks the permission again when the button is used.
  may(act.permission).then((granted) => { node.hidden = !granted; });
  return node;
}

const textOf = (text) => (typeof text === "function" ? text() : text);

function ask(act, opener) {
  const inputs = new Map((act.fields ?? []).map((field) => [field.name, el("input", { id: `act-${field.name}`, value: field.value ?? "", required: field.required ?? false, type: field.type ?? "text", min: field.type === "number" ? 1 : null })]));
  const reason = el("input", { id: "act-reason", autocomplete: "off", maxlength: 1000, required: act.why ?? false });
  const wrong = el("p", { class: "note bad", role: "alert" }), go = el("button", { class: "go" }, act.verb ?? act.label);
  const leave = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const row = (label, input) => el("p", {}, el("label", { for: input.id }, label), input);
  const form = el("form", {}, el("h2", { id: "act-title" }, textOf(act.title)), el("p", { id: "act-what" }, textOf(act.what)),
    (act.fields ?? []).map((field) => row(field.label, inputs.get(field.name))), row("Reason, which is recorded", reason), wrong, el("p", { class: "tools" }, go, leave));
  const dialog = el("dialog", { "aria-labelledby": "act-title", "aria-describedby": "act-what", onclose: () => { dialog.remove(); opener.isConnected && opener.focus(); } }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    wrong.textContent = "";
    try {
      const values = Object.fromEntries([...inputs].map(([name, input]) => [name, input.type === "number" ? Number(input.value) : input.value]));
      await act.send({ ...values, reason: reason.value.trim() });
      dialog.close();
      act.done?.();
    } catch (error) { wrong.textContent = error.message; go.disabled = false; }
  });
  document.body.append(dialog);
  dialog.showModal();
  (inputs.values().next().value ?? reason).focus();
}

const path = (name) => name.split("/").map(encodeURIComponent).join("/");
export const post = (place, body) => sent("POST", `${api}/${place}`, body);
// The name of a change as a string, with its branch, as changes of other branches may have the same name.
export const named = (ref) => (ref.change ? { change: ref.branch ? `${ref.branch}/${ref.change}` : String(ref.change) } : { ref: ref.ref });
export const project = (ref, verb) => `project/${path(ref.project)}/${verb}`;
