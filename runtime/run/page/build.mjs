// Bundles the page into one compressed HTML file, and the header that lets only its own script and style run.
//
//   node build.mjs           writes ../src/serve/page.html.gz and ../src/serve/page.csp
//   node build.mjs --check   fails if the committed files differ from these sources
//
// Compressed bytes depend on the version of zlib, so the check compares their contents.

import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gunzipSync, gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const PAGE = join(here, "../src/serve/page.html.gz");
const POLICY = join(here, "../src/serve/page.csp");
/** Most bytes of the compressed page: they are part of the server's memory. */
const BYTES_MAX = 110_000;

async function bundle(entry, options = {}) {
  const result = await build({
    entryPoints: [join(here, "src", entry)],
    absWorkingDir: here,
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    charset: "utf8",
    legalComments: "none",
    target: ["chrome123", "firefox128", "safari17.5"],
    ...options,
  });
  return { text: result.outputFiles[0].text.trim(), inputs: Object.keys(result.metafile.inputs) };
}

/** The licence of each package that the bundle contains, as its authors wrote it. */
function licences(inputs) {
  const packages = new Set(inputs.map(input => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input)?.[1]).filter(Boolean));
  const texts = [...packages].sort().map(name => {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = ["LICENSE", "LICENSE.md", "LICENSE.txt", "LICENSE-MIT.txt"].map(file => join(folder, file)).find(existsSync);
    if (!file) throw new Error(`${name} has no licence file; look for its licence and name it here`);
    return `${name} ${version} (${license})\n\n${readFileSync(file, "utf8").trim()}`;
  });
  const text = texts.join("\n\n----\n\n");
  // two hyphens and an angle bracket would end the comment
  return text.replaceAll("-->", "-- >");
}

const hash = text => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

async function page() {
  const script = await bundle("main.jsx", { format: "iife", jsx: "automatic", jsxImportSource: "preact" });
  const style = await bundle("style.css");
  if (/<\/?script[\s/>]/i.test(script.text) || /<\/style/i.test(style.text)) throw new Error("the bundle contains a tag that would end it early");
  const html = readFileSync(join(here, "src/index.html"), "utf8")
    .replace("<html", () => `<!--\nflashplan's page, built by \`make page\` from runtime/run/page. It contains:\n\n${licences(script.inputs)}\n-->\n<html`)
    .replace("/*style*/", () => style.text)
    .replace("/*script*/", () => script.text);
  const policy = [
    "default-src 'none'",
    `script-src ${hash(script.text)}`,
    `style-src ${hash(style.text)}`,
    "connect-src 'self'",
    "img-src data:", // the icon
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
  ].join("; ");
  return { html, policy };
}

const { html, policy } = await page();
const committed = existsSync(PAGE) && gunzipSync(readFileSync(PAGE)).toString() === html && existsSync(POLICY) && readFileSync(POLICY, "utf8") === policy;
if (process.argv.includes("--check")) {
  if (!committed) {
    console.error("runtime/run/src/serve/page.html.gz is not what its sources make; run `make page` and commit the result");
    process.exit(1);
  }
} else if (!committed) {
  const bytes = gzipSync(html, { level: 9 });
  writeFileSync(PAGE, bytes);
  writeFileSync(POLICY, policy);
}
const size = readFileSync(PAGE).length;
console.log(`the page: ${html.length} characters, ${size} bytes compressed`);
if (size > BYTES_MAX) {
  console.error(`that is more than ${BYTES_MAX} bytes; leave something out`);
  process.exit(1);
}
