// Shared by the pages. Text is set as text, never as markup.
export const parts = location.pathname.split("/");
export const tenant = decodeURIComponent(parts[2] ?? "");
export const uuid = decodeURIComponent(parts[4] ?? "");
export const api = `/api/tenant/${encodeURIComponent(tenant)}`;

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

export function nav(current) {
  const base = `/t/${encodeURIComponent(tenant)}`;
  for (const [name, label] of [["status", "Status"], ["builds", "Builds"]]) {
    document.getElementById("nav").append(
      el("a", { href: `${base}/${name}`, "aria-current": name === current ? "page" : null }, label));
  }
}

export async function fetched(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail ?? `${answer.status} from ${url}`);
  return answer.json();
}

export function look(result) {
  if (result === "SUCCESS") return "good";
  if (result === null || result === undefined) return "busy";
  return ["SKIPPED", "CANCELED", "DEQUEUED", "NO_JOBS"].includes(result) ? "mute" : "bad";
}

export function took(ms) {
  if (ms === null || ms === undefined) return "";
  const s = Math.floor(ms / 1000);
  return s < 60 ? `${s}s` : s < 3600 ? `${Math.floor(s / 60)}m ${s % 60}s` : `${Math.floor(s / 3600)}h ${Math.floor(s / 60) % 60}m`;
}

export const short = (project) => project.split("/").slice(1).join("/");
export const link = (page, id, text) => el("a", { href: `/t/${encodeURIComponent(tenant)}/${page}/${encodeURIComponent(id)}` }, text);
