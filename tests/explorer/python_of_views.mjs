// Prints what "copy as Python" copies: node python_of_views.mjs VIEWS NAME STATE, the state's changes to the defaults as JSON.
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";

const [folder, name, changes] = process.argv.slice(2);
const view = (await import(pathToFileURL(resolve(folder, `${name}.js`)))).default;
process.stdout.write(view.python({ ...view.defaults, ...JSON.parse(changes) }));
