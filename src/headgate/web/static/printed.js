// Lines of a log, which begin with a timestamp and may have terminal colours.  This module does not use the page.

const STAMP = 26;  // `YYYY-MM-DD HH:MM:SS.mmm | `
/** The length of a line's timestamp in characters. */
export const stamp = (/** @type {string} */ line) => (/^\d{4}-\d\d-\d\d [\d:.]{12} \| /.test(line) ? STAMP : 0);
/** A line without its colours. */
export const plain = (/** @type {string} */ text) => text.replace(/\x1b\[[\d;]*m/g, "");
