// The choice of a provider to log in with.
import { el, login, main, nav, showError } from "./page.js";
nav("", "Log in");
const next = new URLSearchParams(location.search).get("next") ?? "/";
const { realms, name } = await login;
const links = realms.map((one) => el("li", {}, el("a", { href: `/login?realm=${encodeURIComponent(one.name)}&next=${encodeURIComponent(next)}` }, one.title)));
main.append(el("h1", {}, "Log in"), name ? el("p", {}, `You are logged in as ${name}.`) : "", el("p", {}, "Choose a provider to log in with:"), el("ul", {}, links));
if (!realms.length) showError(new Error("Logging in is not configured."));
