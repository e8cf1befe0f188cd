// Bundle the explorer and TensorBoard's tab into the Python package: `npm ci && npm run build`. The output is committed, so that people who
// install attree need no npm; a test compares it with what this script makes.
import { build } from "esbuild";

const folder = process.argv[2] ?? new URL("../src/attree/report/page/static", import.meta.url).pathname;
const about = "attree's explorer, MIT licence. Made from web/src by web/build.js; it holds no code of others.";
const shared = {
  absWorkingDir: new URL(".", import.meta.url).pathname,
  bundle: true,
  charset: "utf8",
  target: ["chrome109", "firefox115", "safari16"],
};

for (const [source, bundle] of [["main", "explorer"], ["tab", "tab"]]) {
  await build({
    ...shared,
    entryPoints: [`src/${source}.js`],
    outfile: `${folder}/${bundle}.js`,
    format: "esm",
    banner: { js: `// ${about}` },
  });
}
await build({
  ...shared,
  entryPoints: ["src/style.css"],
  outfile: `${folder}/explorer.css`,
  banner: { css: `/* ${about} */` },
});
