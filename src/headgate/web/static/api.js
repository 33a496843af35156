import { el, fetched, main, nav, showError } from "./page.js";
nav("", "API");
try {
  const doc = await fetched("/openapi/openapi.json");
  main.append(el("h1", {}, "API"), el("p", {}, `${doc.info.description} Machine-readable: `, el("a", { href: "/openapi/openapi.json" }, "openapi.json"), ", ", el("a", { href: "/openapi/openapi.yaml" }, "openapi.yaml"), "."));
  for (const [path, verbs] of Object.entries(doc.paths)) for (const [verb, what] of Object.entries(verbs)) {
    const asks = path.includes("{") || verb !== "get" ? el("code", {}, path) : el("a", { href: path }, el("code", {}, path));
    main.append(el("section", { class: "card" }, el("p", {}, el("strong", { class: "verb" }, verb.toUpperCase()), " ", asks), el("p", { class: "small" }, what.description ?? "")));
  }
} catch (error) { showError(error); }
