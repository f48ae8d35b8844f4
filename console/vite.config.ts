import { createHash } from "node:crypto";
import { defineConfig, type Plugin } from "vite";

/** Add the digest of every asset to the document that names it. */
function subresourceHashes(): Plugin {
  return {
    name: "subresource-hashes",
    enforce: "post",
    generateBundle: {
      order: "post",
      handler(_options, bundle) {
        const page = bundle["index.html"];
        if (page?.type !== "asset") return;
        let text = String(page.source);
        for (const file of Object.values(bundle)) {
          const body = file.type === "chunk" ? file.code : file.source;
          const digest = createHash("sha384").update(body).digest("base64");
          for (const name of ["src", "href"])
            text = text.replaceAll(`${name}="/console/${file.fileName}"`, `$& integrity="sha384-${digest}"`);
        }
        page.source = text;
      },
    },
  };
}

export default defineConfig({
  base: "/console/",
  plugins: [subresourceHashes()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  resolve: { dedupe: ["@noble/curves", "@noble/hashes", "fzstd"] },
  server: { proxy: { "/api": "http://127.0.0.1:7480" } },
  build: {
    outDir: "../src/ropewalk/server/console",
    emptyOutDir: true,
    target: "es2022",
    assetsDir: "",
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
    license: { fileName: "licenses.md" },
    rolldownOptions: { output: { codeSplitting: false } },
  },
});
