// Previews of artifacts among a build's logs. A page is shown in a frame without any permission, so that it runs no
// scripts and has no origin; text is inserted as text.
import { bearing, el, tenant, token } from "./page.js";

const MOST_BYTES = 262144;  // limit on the text that is shown
const PAGE = /^(text\/html|application\/xhtml)/, TEXT = /^(text\/|application\/(json|xml|yaml|x-yaml))/;

// The path of a file among the logs of the build; empty for any other address, as a job may return any.
function own(url, uuid) {
  const found = URL.canParse(url, location.href) ? new URL(url, location.href) : null;
  // Jobs choose the addresses of their artifacts: only files of this build may be requested with the viewer's token.
  const below = found?.origin === location.origin && found.pathname.startsWith(`/t/${encodeURIComponent(tenant)}/logs/${encodeURIComponent(uuid)}/`);
  return below && !found.pathname.endsWith("/") ? found.pathname : "";
}

const note = (text) => el("p", { class: "note" }, text);
const ask = (place, options) => fetch(place, { ...options, headers: { ...options.headers, Accept: "*/*" } });

async function text(place) {
  const answer = await ask(place, { headers: { ...bearing(), Range: `bytes=0-${MOST_BYTES - 1}` } });
  if (!answer.ok) return [note(`It cannot be read: the server answered ${answer.status}.`)];
  const text = await answer.text(), total = Number((answer.headers.get("Content-Range") ?? "").split("/")[1] ?? 0);
  return [el("pre", { tabindex: 0 }, text), total > MOST_BYTES ? note(`This is the beginning; the file has ${total.toLocaleString()} bytes.`) : ""];
}

async function content(place, name) {
  const about = await ask(place, { method: "HEAD", headers: bearing() });
  const kind = about.headers.get("Content-Type") ?? "", image = kind.startsWith("image/");
  if (!about.ok) return [note(about.status === 404 ? "The file is no longer available." : `It cannot be read: the server answered ${about.status}.`)];
  if (!image && !PAGE.test(kind)) return TEXT.test(kind) ? text(place) : [note(`There is no preview of ${kind}. Follow the link to get the file.`)];
  // The browser itself requests an image or a frame: it sends a cookie but no token.
  if (token() && !(await ask(place, { method: "HEAD" })).ok) return [note("Pages and images cannot be shown with a token. Log in with a provider to see them here.")];
  // An empty `sandbox` forbids scripts, forms and navigation, and gives the page an opaque origin.
  return [image ? el("img", { src: place, alt: name }) : el("iframe", { src: place, sandbox: "", referrerpolicy: "no-referrer", title: `Preview of ${name}` })];
}

// A preview that is loaded when it is opened; null for an artifact that is not among the logs.
export function preview(artifact, uuid) {
  const place = own(artifact.url, uuid);
  if (!place) return null;
  const body = el("div", { role: "status" });
  let loaded = false;
  return el("details", { class: "preview", ontoggle: async (event) => {
    if (loaded || !event.target.open) return;
    loaded = true;
    body.replaceChildren(...await content(place, artifact.name).catch((error) => [note(error.message)]));
  } }, el("summary", { "aria-label": `Preview of ${artifact.name}` }, "Preview"), body);
}
