// A worker that receives two logs piece by piece, and then returns the lines in which they differ.
import { Numbers, differences } from "./compare.js";

const numbers = new Numbers(), logs = { there: numbers.log(), here: numbers.log() };

addEventListener("message", ({ data: { side, data } }) => {
  if (data) return postMessage({ more: logs[side].feed(data) });
  const there = logs.there.lines(), here = logs.here.lines();
  return postMessage({ ...differences(there, here), cut: logs.there.cut() || logs.here.cut(), there: there.length, here: here.length });
});
