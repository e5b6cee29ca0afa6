// Syntax highlighting. highlight.js writes HTML; this reads its tags back as elements, so no HTML parser sees model output.

import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import makefile from "highlight.js/lib/languages/makefile";
import php from "highlight.js/lib/languages/php";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LANGUAGES = { bash, cpp, csharp, css, diff, go, ini, java, javascript, json, makefile, php, python, ruby, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
hljs.registerAliases(["c", "h"], { languageName: "cpp" });

/** Longer code stays plain: it would be highlighted again for each piece of an answer. */
const CHARACTERS_MAX = 40_000;

const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'" };
const unescape = text => text.replace(/&(?:amp|lt|gt|quot|#x27);/g, entity => ENTITIES[entity]);

/** Highlights code, as elements and texts. */
export function highlight(code, language) {
  if (!hljs.getLanguage(language) || code.length > CHARACTERS_MAX) return code;
  const stack = [{ children: [] }];
  for (const part of hljs.highlight(code, { language, ignoreIllegals: true }).value.split(/(<span class="[^"]*">|<\/span>)/)) {
    const [, name] = /^<span class="([^"]*)">$/.exec(part) ?? [];
    if (name !== undefined) stack.push({ name, children: [] });
    else if (part === "</span>") {
      const { name, children } = stack.pop();
      stack.at(-1).children.push(<span class={name}>{children}</span>);
    } else if (part) stack.at(-1).children.push(unescape(part));
  }
  return stack[0].children;
}
