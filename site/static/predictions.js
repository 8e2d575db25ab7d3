// Predictions of a notebook: its choices are buttons. Choosing unfolds the answer; the reader's browser keeps the choice, by the words of
// the question, and nobody else hears of it. Pressing it once more takes it back.
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
  const letter = (button) => button.textContent.trim().slice(0, 3);
  const show = (choice) => {
    for (const button of buttons) button.setAttribute("aria-pressed", letter(button) === choice);
    answer.open = choice !== null;
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const choice = button.getAttribute("aria-pressed") === "true" ? null : letter(button);
      keep(question, choice);
      show(choice);
    });
  }
  show(chosen()[question] ?? null);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const strong of document.querySelectorAll("article p > strong:first-child")) if (strong.textContent === "Predict.") predict(strong.parentElement);
});
