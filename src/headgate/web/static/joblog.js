// The log of a build, as the server has it.
import { bearing } from "./page.js";
import { Lines } from "./lines.js";

/**
 * Ask for a log, or a part of it.
 * @param {string} url
 * @param {Object<string, string>} [headers]
 */
export const fetchLog = (url, headers = {}) => fetch(url, { headers: { ...bearing(), Accept: "text/plain", ...headers } });

/**
 * The lines of a log, which are fed as it is read; what they do not keep is read again, by its range.
 * @param {string} url
 */
export const linesOf = (url) => new Lines(async (first, last) => {
  const answer = await fetchLog(url, { Range: `bytes=${first}-${last}` });
  // With 200 the server sends the whole log, which would be taken for the part that was asked for.
  if (answer.status !== 206) throw new Error(`${url} answered ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
});
