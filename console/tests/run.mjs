// Run the unit tests of the pure modules: each *.test.ts bundled by esbuild, run by Node itself.
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const folder = mkdtempSync(join(tmpdir(), "console-tests-"));
try {
  await esbuild.build({
    entryPoints: readdirSync(here).filter((name) => name.endsWith(".test.ts")).map((name) => join(here, name)),
    outdir: folder,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    jsx: "automatic",
    jsxImportSource: "preact",
    logLevel: "warning",
  });
  const files = readdirSync(folder).map((name) => join(folder, name));
  const run = (reporter) => spawnSync(process.execPath, ["--test", `--test-reporter=${reporter}`, ...files], { stdio: "inherit" }).status ?? 1;
  process.exitCode = run("dot") && run("spec"); // what failed is told in full
} finally {
  rmSync(folder, { recursive: true });
}
