// Order of the site's search: pages that say what to do come before those that say why.
var Scorer = {
  // A result is [docname, title, anchor, description, score, filename, kind].
  score: (result) => {
    const [docname, , , , score] = result;
    if (docname.startsWith("how-to/") || docname === "tutorial") return score + 20;
    if (docname.startsWith("adr/")) return score - 30;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
