// Build the console: src/ → ../src/mainspring/api/static/, which the server reads. `--watch` builds again on every change.
//
// Hashed names, a .gz and a .br beside each file, index.html with the names filled in, and a manifest of what there is.
// esbuild bundles and minifies; oxc-minify then names variables so that more of it repeats, and Zopfli packs, in three iterations.
// What each takes off and costs is in docs/decisions/0053-console.md.
// Fails when a budget is exceeded, or when something that the content security policy forbids has crept in.
import { mkdir, readFile, rm, writeFile, rename } from "node:fs/promises";
import { dirname, join, basename } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import * as esbuild from "esbuild";
import { minifySync } from "oxc-minify";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "src", "mainspring", "api", "static");
const BUDGETS = { "first load, JavaScript": 60_000, "first load, CSS": 12_000, "all JavaScript": 110_000 }; // gzipped

const isWatching = process.argv.includes("--watch"); // quick, and therefore larger: budgets are then told, not kept

const options = {
  absWorkingDir: here,
  entryPoints: ["src/main.tsx", "src/styles/main.css"],
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  outdir: out,
  write: false,
  metafile: true,
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["chrome110", "firefox110", "safari16"],
  // h(type, properties, ...children), which packs better than children among the properties; tsconfig.json has the other for the types
  jsx: "transform",
  jsxFactory: "h",
  jsxFragment: "Fragment",
  inject: ["src/core/jsx.ts"],
  tsconfigRaw: "{}",
  charset: "utf8",
  minify: true,
  legalComments: "none",
  logLevel: "warning",
};

/** The same module, smaller: esbuild never gives a variable the name of one around it, whether that is used there or not. */
function renamed(text) {
  const { code, errors } = minifySync("module.js", text, { module: true, compress: { target: options.target }, mangle: true });
  if (errors.length) throw new Error(errors.map((error) => error.message).join("\n"));
  return code;
}

/** As gzip packs it, 4 % smaller. Imported late: it takes over what is done about errors. */
async function zipped(data) {
  return isWatching ? gzipSync(data) : (await import("@gfx/zopfli")).default.gzipAsync(data, { numiterations: 3 });
}

async function write(result) {
  const files = [];
  for (const { path, text } of result.outputFiles) files.push({ name: basename(path), data: Buffer.from(path.endsWith(".js") && !isWatching ? renamed(text) : text) });
  // The entry does nothing but import the file that both share: that one is named in the page, one request less.
  const [entry] = files.splice(files.findIndex((file) => /^main-.*\.js$/.test(file.name)), 1);
  const script = /^import"\.\/([\w-]+\.js)";\s*$/.exec(entry.data)?.[1];
  if (!script) throw new Error(`${entry.name} is more than an import; which file does the page load?`);
  const style = files.find((file) => /^main-.*\.css$/.test(file.name)).name;
  const page = (await readFile(join(here, "src", "index.html"), "utf8")).replace("{{style}}", style).replace("{{script}}", script);
  const icon = { name: "icon.svg", data: await readFile(join(here, "src", "icon.svg")) };
  const all = [...files, icon, { name: "index.html", data: Buffer.from(page) }];

  const fresh = `${out}.new`;
  await rm(fresh, { recursive: true, force: true });
  await mkdir(fresh, { recursive: true });
  const sizes = {};
  for (const { name, data } of all) {
    const packed = await zipped(data);
    sizes[name] = { bytes: data.length, gzip: packed.length };
    await writeFile(join(fresh, name), data);
    if (name === "index.html") continue; // the server fills in where it is served
    await writeFile(join(fresh, `${name}.gz`), packed);
    await writeFile(join(fresh, `${name}.br`), brotliCompressSync(data, { params: { [constants.BROTLI_PARAM_QUALITY]: 9 } }));
  }
  await writeFile(join(fresh, "manifest.json"), JSON.stringify(sizes, null, 1));
  await rm(out, { recursive: true, force: true });
  await rename(fresh, out);
  return check(result.metafile, files, sizes, script, style);
}

/** What is over its budget or forbidden, in words. */
function check(metafile, files, sizes, script, style) {
  const first = new Set();
  const add = (name) => {
    if (first.has(name)) return;
    first.add(name);
    const output = Object.entries(metafile.outputs).find(([path]) => basename(path) === name)[1];
    for (const imported of output.imports) if (imported.kind === "import-statement") add(basename(imported.path));
  };
  add(script);
  const sum = (names) => [...names].reduce((total, name) => total + sizes[name].gzip, 0);
  const spent = {
    "first load, JavaScript": sum(first),
    "first load, CSS": sizes[style].gzip,
    "all JavaScript": sum(Object.keys(sizes).filter((name) => name.endsWith(".js"))),
  };
  const faults = [];
  for (const [what, most] of Object.entries(BUDGETS)) {
    const line = `${what}: ${(spent[what] / 1000).toFixed(1)} kB gzipped of ${most / 1000}`;
    console.log(line);
    if (spent[what] > most) faults.push(`over its budget: ${line}`);
  }
  for (const { name, data } of files) {
    const text = data.toString();
    if (/\beval\(|new Function\(/.test(text)) faults.push(`${name} has eval, which the policy forbids`);
    if (/dangerouslySetInnerHTML:/.test(text)) faults.push(`${name} sets HTML: text is text`);
  }
  return faults;
}

if (isWatching) {
  const context = await esbuild.context({
    ...options,
    plugins: [{ name: "write", setup: (build) => build.onEnd(async (result) => result.outputFiles && (await write(result)).forEach((fault) => console.error(fault))) }],
  });
  await context.watch();
} else {
  const faults = await write(await esbuild.build(options));
  faults.forEach((fault) => console.error(fault));
  process.exit(faults.length ? 1 : 0);
}
