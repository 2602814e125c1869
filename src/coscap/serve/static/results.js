
const shown = { figure: "" };

async function load() {
  access.again = load;
  try {
    const [found, figure] = await Promise.all([ask("results.json"), reach("results.svg").then(answer => answer.blob())]);
    if (shown.figure) URL.revokeObjectURL(shown.figure);
    $("figure").src = shown.figure = URL.createObjectURL(figure);
    say("");
    show(found);
  } catch (error) {
    say(error.message, true);
  }
}

const number = (value, digits = 2) => value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");

function interval(mean) {
  const ends = mean.low === null ? "" : " [" + number(mean.low) + ", " + number(mean.high) + "]";
  return number(mean.mean) + ends;
}

const range = mean => number(mean.least, 1) + " to " + number(mean.most, 1);

function show(found) {
  const methods = Object.entries(found.methods);
  const people = found.annotators.length;
  $("about").textContent = found.ratings + " ratings by " + people + (people === 1 ? " annotator, " : " annotators, ") +
    found.pictures + " pictures.";
  $("results").hidden = false;
  $("figure").alt = "Accuracy and diversity of each picture and method. " + methods.map(([name, mean]) =>
    name + ": accuracy " + number(mean.accuracy.mean) + ", diversity " + number(mean.diversity.mean)).join("; ");
  table("methods", ["Method", "Accuracy", "Diversity", "Range of accuracy", "Range of diversity", "Pictures"],
    methods.map(([name, { accuracy, diversity }]) => [name, interval(accuracy), interval(diversity), range(accuracy),
      range(diversity), accuracy.pictures]));
  $("apart").hidden = !found.differences.length;
  table("differences", ["Methods", "Accuracy", "Diversity", "Pictures"], found.differences.map(pair =>
    [pair.one + " minus " + pair.other, interval(pair.accuracy), interval(pair.diversity), pair.accuracy.pictures]));
  table("annotators", ["Annotator", "Rated", "Mean accuracy", "Mean diversity"], found.annotators.map(one =>
    [one.name, one.rated + " of " + found.items, number(one.accuracy), number(one.diversity)]));
  const { accuracy, diversity } = found.agreement;
  $("agreement").textContent = accuracy === null && diversity === null ?
    "Agreement is known once two annotators have rated the same captions." :
    "Agreement (Krippendorff’s alpha, interval; 1 is full agreement, 0 chance): accuracy " + number(accuracy) +
    ", diversity " + number(diversity) + ".";
}

function table(id, names, rows) {
  const whole = document.createElement("table");
  const head = whole.createTHead().insertRow();
  for (const name of names) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    head.append(cell);
  }
  const body = whole.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, place) => {
      const cell = document.createElement(place ? "td" : "th");
      if (!place) cell.scope = "row";
      cell.textContent = value;
      line.append(cell);
    });
  }
  $(id).replaceChildren(whole);
}

async function save(address, name) {
  try {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await reach(address).then(answer => answer.blob()));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  } catch (error) {
    say(error.message, true);
  }
}

$("svg").addEventListener("click", () => save("results.svg", "study.svg"));
$("csv").addEventListener("click", () => save("results.csv", "ratings.csv"));
load();
