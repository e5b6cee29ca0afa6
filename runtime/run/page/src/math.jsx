// Mathematics. The parser finds TeX between `$`, `$$`, `\(` and `\[`, and keeps Markdown away from it.

import { useMemo } from "preact/hooks";
import { parse } from "./tex.js";

/** Delimiters of formulas; `display` formulas stand on their own lines. */
const MARKS = [
  { open: "$$", close: "$$", display: true },
  { open: "\\[", close: "\\]", display: true },
  { open: "\\(", close: "\\)", display: false },
  { open: "$", close: "$", display: false },
];

/** Longest inline formula: bounds the search for each closing delimiter. */
const INLINE_MAX = 2000;

/** A plugin of markdown-it. */
export function math(parser) {
  parser.inline.ruler.before("escape", "math", inline);
  parser.block.ruler.before("fence", "math", block, { alt: ["paragraph", "blockquote", "list"] });
}

function inline(state, silent) {
  const { src, pos } = state;
  const mark = MARKS.find(({ open }) => src.startsWith(open, pos));
  if (!mark) return false;
  const from = pos + mark.open.length;
  const end = from + src.slice(from, from + INLINE_MAX).indexOf(mark.close);
  if (end <= from) return false;
  const tex = src.slice(from, end);
  // "$5 and $6" are prices
  if (mark.open === "$" && (/^\s|\s$/.test(tex) || /\d/.test(src[end + 1] ?? "") || tex.includes("\n\n"))) return false;
  if (!silent) state.push(mark.display ? "math_block" : "math_inline", "math", 0).content = tex.trim();
  state.pos = end + mark.close.length;
  return true;
}

function block(state, first, last, silent) {
  const text = line => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]).trim();
  const mark = MARKS.find(({ open, display }) => display && text(first).startsWith(open));
  if (!mark || state.sCount[first] - state.blkIndent >= 4) return false;
  const lines = [text(first).slice(mark.open.length)];
  let line = first;
  while (!lines.at(-1).includes(mark.close)) {
    line += 1;
    // a formula that is still being written goes on to the end
    if (line >= last) break;
    lines.push(text(line));
  }
  const [tex, after] = lines.join("\n").split(mark.close);
  if (after?.trim() || (line >= last && lines[0])) return false;
  if (silent) return true;
  const token = state.push("math_block", "math", 0);
  token.content = tex.trim();
  token.map = [first, Math.min(line + 1, last)];
  state.line = Math.min(line + 1, last);
  return true;
}

/** Renders a formula as MathML, or as source text where parsing fails. */
export function Formula({ tex, display }) {
  const tree = useMemo(() => parse(tex), [tex]);
  if (!tree) return <code>{tex}</code>;
  return (
    <math display={display ? "block" : "inline"} title={tex}>
      {draw(tree)}
    </math>
  );
}

function draw(node) {
  if (typeof node === "string") return node;
  const { tag: Tag, children, ...attributes } = node;
  return <Tag {...attributes}>{children.map(draw)}</Tag>;
}
