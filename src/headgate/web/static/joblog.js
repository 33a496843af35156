// Requests for the log of a build.
import { bearing } from "./page.js";
import { Lines } from "./lines.js";

/**
 * Request a log, or a part of it.
 * @param {string} url
 * @param {Object<string, string>} [headers]
 */
export const fetchLog = (url, headers = {}) => fetch(url, { headers: { ...bearing(), Accept: "text/plain", ...headers } });

/**
 * The lines of a log, which are fed while it is read; lines that are dropped from memory are requested again, by range.
 * @param {string} url
 */
export const linesOf = (url) => new Lines(async (first, last) => {
  const answer = await fetchLog(url, { Range: `bytes=${first}-${last}` });
  // With 200 the server would send the entire log, which must not be mistaken for the requested part.
  if (answer.status !== 206) throw new Error(`${url} answered ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
});
