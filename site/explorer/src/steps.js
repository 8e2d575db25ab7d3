// The steps of a lecture, by view: a sentence about a state, a question, the state that answers it and the answer. Numbers in braces are
// those of the state shown, by the name in the table of numbers; tests/explorer/test_steps.py holds every claim to them.

const FAR = { query: [2.9, 2.3] };
const MEAN = [0.008, 0.133]; // of the points of view 4
const SETTLED = [[-1.5376, 0.6377], [1.2192, 0.8892], [0.4688, -1.3548]];
const SADDLE = { values: [[-1, 0], [1, 0]], weights: [1, 1], sd: 0.5, start: [0, 0.3] };
const SEVEN = [[-1.2, 0.1], [-0.8, -0.4], [-1.5, -0.2], [-0.9, 0.3], [1.9, 0.2], [2.2, -0.3], [1.6, 0.4]];
const MAN = { sentence: "the old man the boats", coupling: 2, schedule: "synchronous" };
const MIDDLE = { hidden: [0.1, 0.1], query: [0.3, 0] };
const THREE = [[22, 68, 1], [35, 30, 2], [58, 32, 1]]; // clicks on a picture
const AS_WIDE = { coordinates: "units", start: [0.57, -0.5] }; // the start of view 14 in the other coordinates
const ACROSS = { query: [-0.59, 0.81] };

export const STEPS = {
  posterior: [
    {
      says: "Three units are equally likely before the query is seen. The query lies nearest key 2.", state: {},
      asks: "How sure is attention that it came from key 2?", then: {},
      answers: "Its probability is {attention.1}. The entropy of attention is {entropy} nats; it would be log 3 = 1.099 if nothing were known.",
    },
    {
      says: "The precision α says how near its key the queries of a unit lie.", state: {},
      asks: "Raise α from 1 to 6: is attention surer, and is the query likelier?", then: { precision: 6 },
      answers: "Attention is surer, {attention.1} for key 2. The query is less likely: it is far from every key at this precision, and its log evidence is {logEvidence} nats.",
    },
    {
      says: "The log evidence of this query is {logEvidence} nats.", state: {},
      asks: "The query walks away from all keys. Does attention grow less sure?", then: FAR,
      answers: "It grows certain, {attention.1} for key 2, while the log evidence falls to {logEvidence}. Attention alone cannot say that no key fits.",
    },
    {
      says: "This query is far from all keys, and attention to key 2 is {attention.1}.", state: FAR,
      asks: "Let a broad background, with prior weight 0.3, generate queries too. What changes?", then: { background: 0.3 },
      answers: "The background takes {attention.3} of the attention: now there is a unit for what no key explains.",
    },
    {
      says: "The query is at the origin, where its dot product with every key is 0. Key 3 is nearest.", state: { query: [0, 0] },
      asks: "Softmax attention would weigh all three alike. Under which prior does the posterior?", then: { linked: true },
      answers: "Under the linked prior, ∝ exp(½ α |key|²): it is {prior.1} for key 2, the longest, and {prior.2} for key 3, the shortest; attention is {attention.0} each.",
    },
  ],
  "same-attention": [
    {
      says: "The keys are measured from the cross.", state: {},
      asks: "Take the cross to the other side: which numbers of the matrix change?", then: { origin: [-1, 0.4] },
      answers: "None, but for rounding ({change}). The model is another: its queries lie around ({expectedQuery.0}, {expectedQuery.1}) now, and the log evidence of the queries asked is {evidence} nats.",
    },
    {
      says: "The metric says in which direction queries scatter.", state: {},
      asks: "Stretch it, 6 along 35 degrees and 0.3 across. Does attention change?", then: { along: 6, across: 0.3, degrees: 35 },
      answers: "No. The cloud of queries drawn from the model does: the log evidence is {evidence} nats, and it was −22.48.",
    },
    {
      says: "Softmax's own model has origin 0 and metric α I. The queries that attention is asked for have their mean at (−0.25, 0.15).", state: { origin: [0, 0] },
      asks: "Where does that model expect queries?", then: {},
      answers: "Around ({expectedQuery.0}, {expectedQuery.1}), far from those that come; their log evidence is {evidence} nats.",
    },
    {
      says: "All these models attend alike, so that attention cannot choose among them. The queries can.", state: { origin: [0, 0] },
      asks: "Take the likeliest model of these queries. By how much is it likelier?", then: { origin: [2.47, 0.32], along: 2.53, across: 3.55, degrees: 143 },
      answers: "Its log evidence is {evidence} nats, and that of softmax's own model is {evidenceAsGiven}. No weight has moved.",
    },
  ],
  "evidence-bound": [
    {
      says: "This guide is sure of unit 1. Its ELBO is {elbo} nats.", state: { guide: [1, 0, 0] },
      asks: "Give all three units equal shares: does the bound rise?", then: { guide: [0.333, 0.333, 0.334] },
      answers: "Yes, to {elbo} nats: the guide is nearer to attention, and what is lost is only {divergence} nats. The log evidence has not moved.",
    },
    {
      says: "The gap is KL(guide | attention), {divergence} nats.", state: {},
      asks: "Where must the guide go for the gap to close?", then: { guide: [0.102, 0.412, 0.486] },
      answers: "To attention, the star. Rounded to three decimals, it leaves {divergence} nats.",
    },
    {
      says: "The guide is attention, to three decimals.", state: { guide: [0.102, 0.412, 0.486] },
      asks: "Now the query moves to the left. Does the guide follow?", then: { query: [-1, 0] },
      answers: "No: attention moves and the guide stays, so that the gap opens to {divergence} nats. A guide must be found anew for each query, or be a function of it.",
    },
    {
      says: "The prior weights of the units are equal.", state: {},
      asks: "Give unit 1 a prior weight of 6: does the gap of this guide grow?", then: { weights: [6, 1, 1] },
      answers: "It shrinks, to {divergence} nats: attention to unit 1 is {attention.0} now, nearer to the guide's 0.6. The log evidence falls, to {logEvidence}: the query is far from unit 1.",
    },
  ],
  "soft-kmeans": [
    {
      says: "Forty points ask three centres, and each gets an average of them. The entropy of attention is {entropy} nats a point.", state: { centers: SETTLED },
      asks: "Raise γ to 8: what becomes of the average?", then: { gamma: 8 },
      answers: "Nearly every point has one centre, as in k-means: the entropy is {entropy}, and the centres have {assigned.0}, {assigned.1} and {assigned.2} points.",
    },
    {
      says: "At γ = 1 these centres have settled. Below γ = 1 / (2 λ), {critical}, a centre gains nothing by standing apart.", state: { centers: SETTLED },
      asks: "Lower γ to 0.2 and let EM settle: where do the three centres go?", then: { gamma: 0.2, centers: [MEAN, MEAN, MEAN] },
      answers: "All to the mean of the points: their spread is {spread}. At this γ there are no clusters.",
    },
    {
      says: "All centres are in one place, where γ = 0.2 has sent them.", state: { gamma: 0.2, centers: [MEAN, MEAN, MEAN] },
      asks: "Raise γ to 1, where three clusters are better. Does a step of EM part the centres?", then: { gamma: 1 },
      answers: "No: the next centres are ({next.0.0}, {next.0.1}) thrice. Centres that agree are moved alike, and EM stays at a saddle of the free energy.",
    },
    {
      says: "At γ = 1, with all centres in one place, the free energy is {freeEnergy} a point.", state: { centers: [MEAN, MEAN, MEAN] },
      asks: "Set the centres apart, one in each group: is that better?", then: { centers: SETTLED },
      answers: "The free energy is {freeEnergy}, lower: a start that breaks the tie finds what EM from the saddle could not.",
    },
  ],
  "mean-or-mode": [
    {
      says: "Three values, equal attention: the answer's density has {count} modes.", state: { sd: 0.3 },
      asks: "Attention's output is the mean. Is it a likely answer?", then: {},
      answers: "No: the log density is {atMean} nats at the mean and {density.0} at each mode.",
    },
    {
      says: "At a standard deviation of 0.6 there are still {count} modes.", state: { sd: 0.6 },
      asks: "Widen it to 0.72: how many now?", then: { sd: 0.72 },
      answers: "{count}. The mean has become a mode, too, more modes than units; in one dimension this cannot happen.",
    },
    {
      says: "At a standard deviation of 0.72 there are {count} modes.", state: { sd: 0.72 },
      asks: "And at 0.8?", then: { sd: 0.8 },
      answers: "{count}: mean and mode agree, and attention's output is the likeliest answer.",
    },
    {
      says: "Two values; EM starts on the line between them, at (0, 0.3).", state: { ...SADDLE, steps: 0 },
      asks: "EM climbs the density. Where does it end?", then: { steps: 40 },
      answers: "At ({end.0}, {end.1}), a saddle: the log density there is {atMean}, and {density.0} at the modes. By symmetry no step leaves the line.",
    },
    {
      says: "EM has ended at the saddle.", state: SADDLE,
      asks: "Start it 0.05 to the right. Does that matter?", then: { start: [0.05, 0.3] },
      answers: "It ends at ({end.0}, {end.1}), a mode: a saddle holds only what starts exactly on its line.",
    },
  ],
  "keys-adapt": [
    {
      says: "Seven queries have moved the keys. At the adapted keys the cross is A's with probability {adapted.0}.", state: {},
      asks: "The keys are uncertain. Averaged over their posterior, whose is it?", then: {},
      answers: "C's, with {right.2}; A has {right.0}. C's key has seen few queries, may be near the cross, and where it is, it explains the cross well.",
    },
    {
      says: "A plain average over the draws of the keys gives A {wrong.0} and C {wrong.2}.", state: {},
      asks: "What does it forget?", then: {},
      answers: "That the cross is one more observation: draws under which it is likely count more. Rightly averaged, A has {right.0} and C {right.2}.",
    },
    {
      says: "The keys' prior has strength 2, so that a key may move.", state: {},
      asks: "Make it 50. Which unit gets the cross, and do the two averages still differ?", then: { keyStrength: 50 },
      answers: "B, by either: {right.1} rightly and {wrong.1} plainly averaged. Keys that hardly move leave little to average over.",
    },
    {
      says: "C's key has no query near its prior mean; its cloud is wide.", state: {},
      asks: "Drop three queries there. What becomes of the cloud, and of the cross?", then: { queries: [...SEVEN, [0.1, 1.5], [-0.2, 1.3], [0.2, 1.7]] },
      answers: "The cloud shrinks around ({keys.2.0}, {keys.2.1}), away from the cross: C has {right.2} now, and A {right.0}.",
    },
    {
      says: "Each key adapts by itself.", state: {},
      asks: "Let one common shift adapt instead. Can C's key still come to the cross?", then: { adapt: "shift" },
      answers: "No: all keys move together, by ({shift.0}, {shift.1}), and the queries of A and B decide where. C has {right.2}, A {right.0}.",
    },
  ],
  memory: [
    {
      says: "Four patterns and {places} resting places: two patterns are near each other.", state: {},
      asks: "Where does retrieval from the dot end?", then: {},
      answers: "At ({end.0}, {end.1}), an average of {effectivePatterns} patterns: at this β the two near ones are one memory.",
    },
    {
      says: "β says how sharply attention chooses a pattern.", state: {},
      asks: "Raise β to 8: do the two patterns part?", then: { beta: 8 },
      answers: "Yes: {places} resting places, and the end is worth {effectivePatterns} patterns, nearly one.",
    },
    {
      says: "At β = 2 there are {places} resting places.", state: {},
      asks: "Lower β to 0.3: how many are left?", then: { beta: 0.3 },
      answers: "{places}: every start ends near the mean of the patterns, an average of {effectivePatterns} of them.",
    },
    {
      says: "With softmax every pattern has some share, and the end is an average of {effectivePatterns}.", state: {},
      asks: "Take sparsemax at the same β. Is a pattern retrieved exactly?", then: { transformation: "sparsemax" },
      answers: "Yes: shares reach 0, and after {steps} steps the state is the pattern ({end.0}, {end.1}).",
    },
  ],
  "mean-field": [
    {
      says: "After one sweep the ELBO is {gap} nats under log Z.", state: { sweeps: 1 },
      asks: "Sweep ten times. Does the ELBO reach log Z?", then: { sweeps: 10 },
      answers: "No: it rises to {elbo}, and {gap} nats are left. Labels of different words are tied in the posterior, and mean field has no ties.",
    },
    {
      says: "The gap is what the scores of arcs tie together.", state: {},
      asks: "Take the coupling to 0, so that no arc has a score. How wide is the gap?", then: { coupling: 0 },
      answers: "It is gone: words are independent now, and the ELBO, {elbo}, is log Z.",
    },
    {
      says: "Mean field calls “time” a noun with probability {labels.0.0}.", state: {},
      asks: "How sure is the exact posterior?", then: {},
      answers: "It says {exactLabels.0.0}: mean field settles on one reading and is surer than it should be.",
    },
    {
      says: "“The old man the boats”, coupling 2, all words updated at once.", state: MAN,
      asks: "The ELBO goes up and down. What if each update goes half the way?", then: { damping: 0.5 },
      answers: "It rises to {elbo}, and the gap falls from 22.78 nats to {gap}. Without damping, words that answer each other at the same time can turn in circles.",
    },
  ],
  "fool-the-diagnostics": [
    {
      says: "This sampler counts every query twice. R-hat is {rhat}.", state: {},
      asks: "Do the diagnostics find the mistake?", then: {},
      answers: "R-hat does not: chains that make one mistake agree. Calibration does: p is {pKey} for the key and {pLogLikelihood} for the log likelihood.",
    },
    {
      says: "With the mistake, ranks of the truth leave the band.", state: {},
      asks: "Take the bug out: do they return?", then: { bug: "none" },
      answers: "Yes: p is {pKey} for the key and {pLogLikelihood} for the log likelihood, and the drawn mean, {mean}, is near the exact one, {exactMean}.",
    },
    {
      says: "No bug. The prior means are 5 apart, and the drawn mean is {mean}.", state: { bug: "none" },
      asks: "Bring the prior means together: two modes, and all chains start in one. What does R-hat say?", then: { separation: 0 },
      answers: "{rhat}, all is well. But the drawn mean is {mean} and the exact one {exactMean}: a mode is missing. Calibration starts from draws of the prior and cannot see it.",
    },
    {
      says: "Half of the posterior is missing, and R-hat is {rhat}.", state: { bug: "none", separation: 0 },
      asks: "Start every second chain in the other mode. What does R-hat say now?", then: { start: "apart" },
      answers: "{rhat}: the chains disagree. Different starts are what lets R-hat see a second mode; four chains are worth {essBulk} draws here.",
    },
    {
      says: "This sampler ignores the queries: it draws from the prior. R-hat is {rhat}.", state: { bug: "ignore" },
      asks: "Are the ranks of the key uniform?", then: {},
      answers: "Nearly: p is {pKey}, for the truth was drawn from the prior, too. The log likelihood finds it, with p {pLogLikelihood}: rank a quantity that sees the data.",
    },
  ],
  regression: [
    {
      says: "Nothing has been read. The exact band is the prior's.", state: { read: 0 },
      asks: "Read two pairs whose keys point the same way. Which answer overshoots?", then: { read: 2 },
      answers: "Linear attention's, {linear.0}: it adds up two answers to one question. The truth is {truth}, the exact mean {exact.0}.",
    },
    {
      says: "The query lies between the two keys that were read; the exact standard deviation is {exact.1}.", state: {},
      asks: "Turn the query across them. Whose band widens?", then: ACROSS,
      answers: "The exact one, to {exact.1}: nothing has been heard in that direction. The delta rule's stays at {delta.1}.",
    },
    {
      says: "The query lies across the keys, and the exact standard deviation is {exact.1}.", state: ACROSS,
      asks: "The third key points that way. Read it: what does the exact answer gain?", then: { read: 3 },
      answers: "Its standard deviation falls to {exact.1}, and its mean, {exact.0}, comes nearer to the truth, {truth}.",
    },
    {
      says: "The noise has precision 20: values are nearly right.", state: {},
      asks: "Make it 1. Does the exact memory still trust the values?", then: { noise: 1 },
      answers: "Less: its mean shrinks to {exact.0} towards the prior's 0, and its standard deviation is {exact.1}.",
    },
    {
      says: "All four pairs have been read without forgetting; the exact weights of the first two are {attention.0} and {attention.1}.", state: { read: 4 },
      asks: "Forget half with every pair. Which pair loses most?", then: { drift: "discount", forgetting: 0.5 },
      answers: "The first: its weight is {attention.0}, that of the last {attention.3}. The price is a wider band, standard deviation {exact.1}.",
    },
  ],
  "two-keys": [
    {
      says: "A has two keys, B and C have one each.", state: {},
      asks: "In how many pieces does A own the plane? Is its region convex?", then: {},
      answers: "In {pieces} pieces, which a convex region never has: for {lost %} of the pairs of its places another unit owns the midpoint.",
    },
    {
      says: "A's second key has half of A's weight.", state: {},
      asks: "Take its weight to 0. What is A's region now?", then: { weight: 0 },
      answers: "{pieces} piece, and no pair of its places loses its midpoint: with one key a unit and one precision, regions are convex.",
    },
    {
      says: "A owns {owned %} of the window.", state: {},
      asks: "Bring A's keys together in one place, with both their weights. Is that another model than one key?", then: { keys: [[-2, 0], [-2, 0], [0.3, 0.7], [0, -2]] },
      answers: "No: A owns {owned %}, as with one key, and the log evidence of the query is {logEvidence} nats, the same. Two keys in one place are one.",
    },
    {
      says: "The query is equally far from both keys of A, which has {attention.0} of the attention.", state: { query: [0, 0] },
      asks: "Let only the likelier key of a unit count. What does A lose?", then: { assignment: "hard" },
      answers: "Half of its term: attention to A is {attention.0}. The log evidence falls from {logEvidence} to {hardEvidence}.",
    },
  ],
  novelty: [
    {
      says: "A fourth class, which was never taught, has its points around the cross. The query is one of them.", state: {},
      asks: "How sure is attention of one of the three classes?", then: {},
      answers: "It gives A {share}: A fits better than B and C. But its log evidence, {queryEvidence} nats, is below the threshold, {threshold}: A does not fit either.",
    },
    {
      says: "The evidence tells points of known classes from those of the fourth with an AUROC of {evidenceAuroc}.", state: {},
      asks: "The odds of the surest class might do so, too. Do they?", then: {},
      answers: "They are worse than a coin, {oddsAuroc}: the fourth class is farther from B and C than A itself is, and attention is surer of it.",
    },
    {
      says: "Out here the odds are fooled: their AUROC is {oddsAuroc}.", state: {},
      asks: "Take the fourth class between the three others. Which score sees it there?", then: MIDDLE,
      answers: "Both do, {oddsAuroc} by the odds and {evidenceAuroc} by the evidence: between the classes attention is unsure.",
    },
    {
      says: "Between the three classes, the AUROC of the evidence is {evidenceAuroc}.", state: MIDDLE,
      asks: "Lower α to 0.5, so that queries lie farther from their units. Does the evidence still see the fourth class?", then: { precision: 0.5 },
      answers: "No, {evidenceAuroc}: where units are so broad, the middle is the likeliest place of all. The evidence is no better than its model.",
    },
    {
      says: "A class that was never taught may also lie where a known class is.", state: {},
      asks: "Put it onto class B. Which score sees it?", then: { hidden: [1.5, 0.9], query: [1.2, 0.6] },
      answers: "Neither: {evidenceAuroc} by the evidence, {oddsAuroc} by the odds. From the place alone nobody can tell such points from B's.",
    },
  ],
  together: [
    {
      says: "Three queries of a new domain have come, near A, C and D.", state: {},
      asks: "B and E have no query. Do they move?", then: {},
      answers: "Yes, by {moves.1} and {moves.4}; the others have moved by {moves.0}, {moves.2} and {moves.3}. What is common to all keys is learned from any of them.",
    },
    {
      says: "The common move has strength τ = 0.6, own moves σ = 0.25.", state: {},
      asks: "Take σ to 0.03, so that hardly anything is a key's own. How do the keys move?", then: { sigma: 0.03 },
      answers: "As one: by {moves.0}, {moves.1}, {moves.2}, {moves.3} and {moves.4}.",
    },
    {
      says: "Keys move together here.", state: { sigma: 0.03 },
      asks: "Now take τ to 0.03 and σ to 0.6: each on its own. Who moves?", then: { tau: 0.03, sigma: 0.6 },
      answers: "A, C and D, by {moves.0}, {moves.2} and {moves.3}. B and E move by {moves.1} and {moves.4} and keep nearly their prior's width, {spread.1} and {spread.4}.",
    },
    {
      says: "Nobody knows τ and σ; the map says how likely the queries are under each pair.", state: {},
      asks: "Three queries have moved nearly alike. Which pair do they make likeliest?", then: {},
      answers: "Of the map's places τ = {top.0} and σ = {top.1}, with {topEvidence} nats: a common move, and own ones as small as the map has.",
    },
    {
      says: "The best place of the map has σ = {top.1}.", state: {},
      asks: "D's query moves the other way. What does the map say of σ?", then: { queries: [[-1.6, -0.55], [1.25, -1.2], [1.8, -0.1]] },
      answers: "That keys have moves of their own: its top is at τ = {top.0} and σ = {top.1} now.",
    },
  ],
  "one-click": [
    {
      says: "Two of 5,551 pixels are clicked, one of the pagoda and one of the rest. The library's segmenter has given every pixel a class.", state: {},
      asks: "How well does the mask agree with one that was drawn by hand?", then: {},
      answers: "Its intersection over union is {overlap}; {wrong} pixels are wrong. The ring is on one of them, in the trees at the pagoda's foot.",
    },
    {
      says: "The ring is on a tree, of which the answer says pagoda with probability {probability}.", state: {},
      asks: "Who says so: paths to the clicks, colours, or the neighbours?", then: {},
      answers: "Of the log odds of its unit, paths give {paths}, colours {colours} and neighbours {neighbours} nats: it is the units about it that make it sure.",
    },
    {
      says: "With path_evidence = 1.8 a click reaches along short paths of like colours.", state: {},
      asks: "Take it to 0: colours and neighbours are left. Is the pagoda still found?", then: { pathEvidence: 0 },
      answers: "No, the intersection over union is {overlap}: {share %} of the picture has colours of the clicked pagoda.",
    },
    {
      says: "The segmenter expects {expected} wrong pixels, and {wrong} are wrong.", state: { show: "doubt" },
      asks: "Let each unit answer on its own. Are its mask and its uncertainty better or worse?", then: { units: "alone" },
      answers: "The mask is about as good, {wrong} are wrong. But {expected} are expected to be: without neighbours hardly a unit is sure.",
    },
    {
      says: "A third click will be right: the pixel in the middle of the largest error is of the rest. The overlap is {overlap}.", state: {},
      asks: "Can a right click do harm?", then: { clicks: THREE },
      answers: "Yes, the overlap falls to {overlap}. What the click implies for other pixels is inferred, and now the foot of the pagoda goes with the trees.",
    },
    {
      says: "After three clicks {wrong} pixels are wrong.", state: { clicks: THREE },
      asks: "Two more, each in the middle of the largest error then. Where does that lead?", then: { clicks: [...THREE, [47, 46, 2], [56, 49, 1]] },
      answers: "To an overlap of {overlap}, better than with two.",
    },
  ],
  funnel: [
    {
      says: "Given the precision α the key's width is σ = 1 / √(1 + α). Six leapfrog steps, upwards: the energy errs by {worst} nats at most.", state: { steps: 6 },
      asks: "The path goes on into the narrow part. Does it keep its energy?", then: { steps: 20 },
      answers: "No. At step {broke} the error is beyond 1000 nats: a divergence, which marks a place where steps are too long.",
    },
    {
      says: "The step is 0.25 of the overall standard deviation of the key, {scale}. Where that is more than 2 σ it is unstable: above a precision of {limit}.", state: {},
      asks: "Double the step. How much of the posterior is too narrow for it?", then: { step: 0.5 },
      answers: "{unstable %}: whatever has a precision above {limit}. Of 500 draws {diverging} meet a divergence.",
    },
    {
      says: "Of 500 draws of NUTS {diverging} met a divergence; they are worth {effective} draws.", state: {},
      asks: "Shorter steps, 0.1: are there still divergences, and what are the draws worth?", then: { step: 0.1 },
      answers: "{diverging} divergences. The draws are worth {effective}, and each takes {length} leapfrog steps: the alarm is silent, and the chains are still slow.",
    },
    {
      says: "The step is 0.25 again; R-hat of the two chains is {rhat}.", state: {},
      asks: "Measure the key in units of σ. What does the sampler see?", then: AS_WIDE,
      answers: "One width at every precision. {diverging} divergences, R-hat {rhat}, and the draws are worth {effective}.",
    },
    {
      says: "In units of σ a draw takes {length} leapfrog steps of 0.25.", state: AS_WIDE,
      asks: "May the step be 0.8 here?", then: { ...AS_WIDE, step: 0.8 },
      answers: "Yes: {length} steps a draw, which are worth {effective}; {diverging} of 500 meet a divergence, as this path does, at the largest precisions, where the density of log α falls steeply.",
    },
  ],
  "trained-head": [
    {
      says: "The transformer reads a text of which it was taught others like it. Its loss is {loss} nats a character; guessing among its 99 characters would cost log 99 = 4.595.", state: {},
      asks: "How sharply does head 1.0 attend at the framed character?", then: {},
      answers: "The entropy of its attention is {entropy} nats, of log 61 = 4.111 at most.",
    },
    {
      says: "In softmax's own model of this head its queries have a log evidence of {ownEvidence} nats each.", state: {},
      asks: "Choose, among all models with this attention, the likeliest of the queries. How much is gained, and does attention change?", then: { place: 1 },
      answers: "The log evidence is {bestEvidence} nats each, and no weight has changed by more than {change}.",
    },
    {
      says: "Crosses are queries drawn from softmax's own model. Their mean is {apart} from that of the real queries, the dots.", state: {},
      asks: "Where do the crosses go on the way to the best equivalent?", then: { place: 1 },
      answers: "To the real queries, {apart} from their mean: the best equivalent is fitted to these queries with 17 numbers, and has their mean and mean square.",
    },
    {
      says: "This is the best equivalent of head 1.0, with {bestEvidence} nats a query.", state: { place: 1 },
      asks: "Look at head 0.1 of the first layer. Is softmax's own model right there?", then: { head: "0.1" },
      answers: "No: {ownEvidence} nats a query in softmax's own model, {bestEvidence} in the best equivalent.",
    },
  ],
};
