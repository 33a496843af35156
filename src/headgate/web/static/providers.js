// Providers of machines, with their labels, images and sizes.
import { api, el, main, nav, table, tenant } from "./page.js";
import { watch } from "./live.js";
nav("providers", "Providers of machines");
const MOST = 500, body = el("div");
const names = (found) => found.map((one) => one.name).join(", ");
const cut = (found) => (found.length > MOST ? [el("p", { class: "note" }, `Only the first ${MOST} of ${found.length.toLocaleString()} are shown.`)] : []);
// The builds and uploads of an image that jobs build.
const builds = (image) => (image.build_artifacts ?? []).map((one) => el("li", {}, [one.format, one.state, one.timestamp, one.validated ? "validated" : "", ...(one.uploads ?? []).map((up) => `${up.endpoint_name}: ${up.state}`)].filter(Boolean).join(" · ")));
main.append(el("h1", {}, "Providers of machines"), body);
watch(["providers", "labels", "images", "flavors"].map((what) => `${api}/${what}`), body, (providers, labels, images, flavors) => {
  const of = (kind, name) => providers.filter((one) => one[kind].some((part) => part.name === name)).map((one) => one.name).join(", ");
  return [table(["Provider", "Labels", "Images", "Sizes"], providers.slice(0, MOST).map((p) => [p.name, names(p.labels), names(p.images), names(p.flavors)]), "The configuration of this tenant has no providers: machines come from the inventory, or jobs need no machines."), ...cut(providers),
    el("h2", {}, "Labels"), el("p", { class: "small" }, "Jobs request machines by label."), table(["Label", "From", "Description"], labels.slice(0, MOST).map((l) => [l.name, of("labels", l.name) || (l.canonical_name ? "" : "the inventory"), l.description ?? ""]), "There are no labels."), ...cut(labels),
    el("h2", {}, "Images"), el("p", { class: "small" }, "For all builds, uploads and errors, see ", el("a", { href: `/t/${encodeURIComponent(tenant)}/images` }, "images"), "."), table(["Image", "Kind", "From", "Defined in", "Builds"], images.slice(0, MOST).map((i) => [i.name, i.type, of("images", i.name), `${i.project_canonical_name} ${i.branch}`, (i.build_artifacts ?? []).length ? el("ul", { class: "plain small" }, builds(i)) : ""]), "No images are defined."), ...cut(images),
    el("h2", {}, "Sizes"), table(["Size", "From", "Description"], flavors.slice(0, MOST).map((f) => [f.name, of("flavors", f.name), f.description ?? ""]), "No sizes are defined."), ...cut(flavors)];
}, 10_000);
