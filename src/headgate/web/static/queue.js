// Computations on the order of a queue: dependent items, the drawing of the graph, and estimates of the end.  This module
// uses neither the page nor the clock.

const COLUMNS_MAX = 5;

// Item -> the number of items that are tested on top of it, directly or indirectly: if it fails, they are tested again.
export function resting(items) {
  const found = new Map(items.map((item) => [item.id, 0])), ahead = new Map(items.map((item) => [item.id, item.item_ahead]));
  for (const item of items) {
    const passed = new Set([item.id]);
    // Guarded against circles, so that this ends whatever the server sends.
    for (let one = ahead.get(item.id); one && !passed.has(one) && found.has(one); one = ahead.get(one)) { passed.add(one); found.set(one, found.get(one) + 1); }
  }
  return found;
}

// Item -> its part of the graph: its own column, the columns that pass it, and those that begin at it.  The last item on top
// of an item continues its column; others get a column of their own, so that no line passes an item it does not belong to.
export function rails(items) {
  const place = new Map(items.map((item, n) => [item.id, n])), children = items.map(() => []);
  items.forEach((item, n) => { const ahead = place.get(item.item_ahead); if (ahead !== undefined && ahead < n) children[ahead].push(n); });
  const column = new Array(items.length).fill(-1), until = [], drawn = [];
  // When all columns are in use, lines share the last one: a crowded graph is better than one wider than the page.
  const free = (from) => { let one = 0; while (one < COLUMNS_MAX - 1 && (until[one] ?? -1) > from) one++; return one; };
  items.forEach((item, n) => {
    const up = column[n] >= 0;
    if (!up) column[n] = free(n);
    until[column[n]] = Math.max(until[column[n]] ?? -1, n);
    const last = children[n].at(-1), out = [];
    if (last !== undefined) { column[last] = column[n]; until[column[n]] = last; }
    for (const child of children[n].slice(0, -1)) { column[child] = free(n); until[column[child]] = Math.max(until[column[child]] ?? -1, child); out.push(column[child]); }
    drawn.push({ column: column[n], up, down: last !== undefined, out });
  });
  const passing = items.map(() => []);
  children.forEach((below, n) => below.forEach((child) => { for (let row = n + 1; row < child; row++) passing[row].push(column[child]); }));
  const width = Math.max(1, ...column.map((one) => one + 1));
  return new Map(items.map((item, n) => [item.id, { ...drawn[n], through: [...new Set(passing[n])].sort(), width }]));
}

// Milliseconds until the last of these jobs ends, if jobs that have not begun take as long as estimated; null: unknown.
export function jobsLeft(jobs, now) {
  const ends = new Map();
  for (const job of jobs) {
    if (job.result) ends.set(job.name, 0);
    else if (job.running && job.start_time !== null && job.estimated_time) ends.set(job.name, Math.max(0, (job.start_time + job.estimated_time) * 1000 - now));
    else if (!job.running && job.estimated_time) ends.set(job.name, job.estimated_time * 1000 + Math.max(0, ...job.dependencies.map((name) => ends.get(name) ?? 0)));
    else return null;
  }
  return ends.size ? Math.max(...ends.values()) : null;
}

// Whether no job of an item, or of an item ahead that it waits for, still has to end: an estimate may run out before.
export const ended = (item, line) => [item, ...line.filter((one) => !one.failing_reasons.length)].every((one) => one.jobs.every((job) => job.result));

// Like `jobsLeft`, for an item that lands after all items ahead of it that do not fail.
export function itemLeft(item, line, now) {
  let most = jobsLeft(item.jobs, now);
  for (const one of line) {
    if (most === null) return null;
    if (one.failing_reasons.length) continue;
    const left = jobsLeft(one.jobs, now);
    most = left === null ? null : Math.max(most, left);
  }
  return most;
}
