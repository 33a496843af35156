// A drawing of a job graph: jobs are right of the jobs they depend on.  The page also has a table with the same content.
const SPACE = "http://www.w3.org/2000/svg";
const WIDE = 190, TALL = 30, APART = 70, BETWEEN = 12, EDGE = 8, CHARS = 24, DRAWN_MAX = 400;

function part(tag, attributes, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Job -> the length of the longest chain of jobs before it.  Circular dependencies are cut.
export function depths(jobs) {
  const known = new Map(jobs.map((job) => [job.name, job.dependencies.map((d) => d.name)])), found = new Map();
  const follow = (name, above) => {
    if (found.has(name)) return found.get(name);
    if (above.has(name) || !known.has(name)) return -1;
    above.add(name);
    const depth = 1 + Math.max(-1, ...known.get(name).map((other) => follow(other, above)));
    above.delete(name);
    found.set(name, depth);
    return depth;
  };
  for (const job of jobs) follow(job.name, new Set());
  return found;
}

// `choose` is called with the name of the job that is clicked.
export function graph(jobs, choose) {
  const drawn = jobs.slice(0, DRAWN_MAX), depth = depths(drawn), columns = [];
  for (const job of drawn) (columns[depth.get(job.name)] ??= []).push(job);
  const at = new Map();
  // each column is ordered by the positions of its dependencies, so that few lines cross
  columns.forEach((column, x) => {
    const middle = (job) => { const rows = job.dependencies.map((d) => at.get(d.name)?.[1]).filter((y) => y !== undefined); return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : 0; };
    column.map((job) => [middle(job), job]).sort((a, b) => a[0] - b[0]).forEach(([, job], y) => at.set(job.name, [EDGE + x * (WIDE + APART), EDGE + y * (TALL + BETWEEN)]));
  });
  const width = 2 * EDGE + columns.length * (WIDE + APART) - APART, height = 2 * EDGE + Math.max(...columns.map((column) => column.length)) * (TALL + BETWEEN) - BETWEEN;
  const lines = drawn.flatMap((job) => job.dependencies.filter((d) => at.has(d.name)).map((d) => {
    const [x1, y1] = at.get(d.name), [x2, y2] = at.get(job.name), from = x1 + WIDE, to = x2, half = (from + to) / 2;
    return part("path", { d: `M${from} ${y1 + TALL / 2}C${half} ${y1 + TALL / 2} ${half} ${y2 + TALL / 2} ${to} ${y2 + TALL / 2}`, class: d.soft ? "line soft" : "line" });
  }));
  const boxes = drawn.map((job) => {
    const [x, y] = at.get(job.name), name = job.name.length > CHARS ? `${job.name.slice(0, CHARS - 1)}…` : job.name;
    const box = part("g", { class: "node", transform: `translate(${x} ${y})` }, part("title", {}, job.name), part("rect", { width: WIDE, height: TALL, rx: 6 }), part("text", { x: 10, y: TALL / 2 + 5 }, name));
    box.addEventListener("click", () => choose(job.name));
    return box;
  });
  return part("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Dependencies of ${drawn.length} jobs; the table has the same content` }, ...lines, ...boxes);
}
