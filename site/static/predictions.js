// Predictions of a notebook: its choices are buttons. Choosing unfolds the answer; the reader's browser keeps the choice, by the words of
// the question, and nobody else hears of it. Pressing it once more takes it back. At the end stands the line of all choices, for a student to
// copy and send, and a place where a teacher pastes such lines and sees how often each choice was made.
const PLACE = "probtx: predictions";

function chosen() {
  try {
    return JSON.parse(localStorage.getItem(PLACE)) ?? {};
  } catch {
    return {}; // no storage, as in some browsers for files
  }
}

function keep(question, choice) {
  const { [question]: _, ...others } = chosen();
  try {
    localStorage.setItem(PLACE, JSON.stringify(choice === null ? others : { ...others, [question]: choice }));
  } catch {
    // the choice lasts as long as the page
  }
}

function predict(paragraph) {
  const [list, answer] = [paragraph.nextElementSibling, paragraph.nextElementSibling?.nextElementSibling];
  if (list?.tagName !== "UL" || answer?.tagName !== "DETAILS") return;
  const question = paragraph.textContent.trim().slice(0, 100);
  list.classList.add("predictions");
  const buttons = [...list.children].map((item) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...(item.querySelector(":scope > p") ?? item).childNodes);
    item.replaceChildren(button);
    return button;
  });
  const letter = (button) => button.textContent.trim().slice(0, 3); // such as (b)
  const show = (choice) => {
    for (const button of buttons) button.setAttribute("aria-pressed", letter(button) === choice);
    answer.open = choice !== null;
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const choice = button.getAttribute("aria-pressed") === "true" ? null : letter(button);
      keep(question, choice);
      show(choice);
      list.dispatchEvent(new Event("chosen", { bubbles: true }));
    });
  }
  show(chosen()[question] ?? null);
  return buttons;
}

// How often each choice of each question was made, by the lines of a notebook in a text; of how many lists, and how many of other notebooks.
function counted(text, name, questions) {
  const lists = [...text.matchAll(/\b(\d\d): ((?:[a-z]|-)(?: (?:[a-z]|-))*)(?!\S)/g)].map(([, of, letters]) => [of, letters.split(" ")]);
  const own = lists.filter(([of, letters]) => of === name && letters.length === questions.length).map(([, letters]) => letters);
  return { own: own.length, others: lists.length - own.length, counts: questions.map((letters, k) => letters.map((letter) => own.filter((list) => list[k] === letter).length)) };
}

function element(tag, attributes, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function classroom(article, questions) {
  const name = article.querySelector("h1")?.textContent.match(/\d\d/)?.[0];
  if (!name || !questions.length) return;
  const letters = questions.map((buttons) => buttons.map((button) => button.textContent.trim()[1]));
  const line = element("code", {});
  const copied = element("span", { role: "status" });
  const copy = element("button", { type: "button", textContent: "Copy" });
  const pasted = element("textarea", { rows: 4, ariaLabel: "Lines of a class" });
  const said = element("p", { role: "status" });
  const table = element("table", {});
  const write = () => {
    copied.textContent = "";
    line.textContent = `${name}: ${questions.map((buttons, k) => letters[k][buttons.findIndex((button) => button.getAttribute("aria-pressed") === "true")] ?? "-").join(" ")}`;
  };
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(line.textContent);
      copied.textContent = " Copied.";
    } catch {
      getSelection().selectAllChildren(line);
      copied.textContent = " Selected: press Ctrl+C.";
    }
  });
  pasted.addEventListener("input", () => {
    const { own, others, counts } = counted(pasted.value, name, letters);
    said.textContent = `${own} ${own === 1 ? "list" : "lists"} of this notebook${others ? `; ${others} more ${others === 1 ? "is" : "are"} of another, or of an older one` : ""}.`;
    table.replaceChildren(...counts.map((row, k) => element("tr", {}, element("th", { scope: "row", textContent: `Prediction ${k + 1}` }), ...row.map((count, j) => element("td", { textContent: `(${letters[k][j]}) ${count}` })))));
  });
  article.addEventListener("chosen", write);
  write();
  article.append(
    element("section", { className: "class" },
      element("p", {}, "Your predictions: ", line, " ", copy, copied),
      element("details", {}, element("summary", {}, "Count the predictions of a class"), element("p", {}, "Students copy the line above and send it; paste all lines here. Nothing leaves this page."), pasted, said, table),
    ),
  );
}

document.addEventListener("DOMContentLoaded", () => {
  const asked = [...document.querySelectorAll("article p > strong:first-child")].filter((strong) => strong.textContent === "Predict.");
  const questions = asked.map((strong) => predict(strong.parentElement)).filter(Boolean);
  if (questions.length) classroom(document.querySelector("article"), questions);
});
