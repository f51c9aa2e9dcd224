// Builds the console into service/console/static/, or with --check compares a build with the files there.
import { build } from "esbuild";
import { readFileSync, writeFileSync, mkdirSync, existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const MAX_GZIPPED = 300 * 1024;
const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../service/console/static");
const isCheck = process.argv.includes("--check");

const built = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: target,
  bundle: true,
  minify: true,
  write: false,
  // No module: browsers send an Origin with requests for modules, and the admin listener refuses such.
  format: "iife",
  target: "es2022",
  // The licences are in licenses.txt, whole.
  legalComments: "none",
});
const files = Object.fromEntries(built.outputFiles.map((file) => [file.path.split("/").pop(), file.contents]));
for (const name of ["index.html", "icon.svg"]) files[name] = readFileSync(join(here, "src", name));
files["licenses.txt"] = Buffer.from(
  ["preact", "uplot"]
    .map((name) => {
      const folder = join(here, "node_modules", name);
      const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      return `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
    })
    .join("\n----\n\n"),
);

let gzipped = 0;
let differs = 0;
for (const [name, content] of Object.entries(files)) {
  const size = gzipSync(content, { level: 9 }).length;
  gzipped += size;
  const path = join(target, name);
  if (!isCheck) {
    mkdirSync(target, { recursive: true });
    writeFileSync(path, content);
  } else if (!existsSync(path) || !readFileSync(path).equals(Buffer.from(content))) {
    console.error(`service/console/static/${name} differs from a build of console/: run make console`);
    differs = 1;
  }
  console.log(`${name}: ${content.length} bytes, ${size} gzipped`);
}
console.log(`all: ${gzipped} bytes gzipped, the limit is ${MAX_GZIPPED}`);
process.exit(differs || Number(gzipped > MAX_GZIPPED));
