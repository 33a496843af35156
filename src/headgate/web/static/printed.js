// A line of a log as it is printed: with the moment in front, and with colours of a terminal.  No page.

const STAMP = 26;  // `YYYY-MM-DD HH:MM:SS.mmm | `
/** How many characters of a line are the moment at which it was printed. */
export const stamp = (/** @type {string} */ line) => (/^\d{4}-\d\d-\d\d [\d:.]{12} \| /.test(line) ? STAMP : 0);
/** A line without its colours. */
export const plain = (/** @type {string} */ text) => text.replace(/\x1b\[[\d;]*m/g, "");
