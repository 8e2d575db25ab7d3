// From a file no page can be fetched for its excerpt.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

document.addEventListener("DOMContentLoaded", () => {
  // On a phone the rows of these tables are lists, and each entry says its column.
  for (const table of document.querySelectorAll(".lists table")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, index) => (cell.dataset.head = heads[index]));
  }
});
