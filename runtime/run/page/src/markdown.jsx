// Markdown. The parser's tokens become elements of a fixed list; raw HTML stays text. No string is ever parsed as HTML.

import MarkdownIt from "markdown-it";
import { Component, Fragment } from "preact";
import { CodeBlock } from "./code.jsx";
import { Formula, math } from "./math.jsx";

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true, maxNesting: 60 }).use(math);
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });

/**
 * Renders Markdown. A top-level block renders again only when its source changes, so a growing text keeps the elements
 * above its end.
 */
export function Markdown({ text }) {
  const environment = {};
  const tokens = parser.parse(text, environment);
  const lines = text.split("\n");
  const references = Object.keys(environment.references ?? {}).length;
  return (
    <div class="markdown">
      {blocks(tokens).map((tokens, index) => {
        const [from, to] = tokens[0].map ?? [0, 0];
        return <Block key={index} tokens={tokens} source={lines.slice(from, to).join("\n")} references={references} />;
      })}
    </div>
  );
}

class Block extends Component {
  shouldComponentUpdate({ source, references }) {
    return source !== this.props.source || references !== this.props.references;
  }

  render({ tokens }) {
    return elements(tokens);
  }
}

/** The tokens of each top-level block. */
function blocks(tokens) {
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push([]);
    blocks.at(-1).push(token);
    depth += token.nesting;
  }
  return blocks;
}

function elements(tokens) {
  const stack = [{ children: [] }];
  for (const token of tokens) {
    if (token.nesting === 1) stack.push({ token, children: [] });
    else if (token.nesting === -1) {
      const { token, children } = stack.pop();
      stack.at(-1).children.push(element(token, children));
    } else stack.at(-1).children.push(leaf(token));
  }
  return stack[0].children;
}

function element(token, children) {
  switch (token.type) {
    case "paragraph_open":
      return token.hidden ? <Fragment>{children}</Fragment> : <p>{children}</p>;
    case "heading_open": {
      // the page itself has the first two levels
      const Heading = `h${Math.min(6, Number(token.tag.slice(1)) + 2)}`;
      return <Heading class={`h${token.tag.slice(1)}`}>{children}</Heading>;
    }
    case "bullet_list_open":
      return <ul>{children}</ul>;
    case "ordered_list_open":
      return <ol start={token.attrGet("start") ?? undefined}>{children}</ol>;
    case "list_item_open":
      return <li>{children}</li>;
    case "blockquote_open":
      return <blockquote>{children}</blockquote>;
    case "table_open":
      return (
        <div class="scroll" role="region" aria-label="Table" tabIndex={0}>
          <table>{children}</table>
        </div>
      );
    case "thead_open":
      return <thead>{children}</thead>;
    case "tbody_open":
      return <tbody>{children}</tbody>;
    case "tr_open":
      return <tr>{children}</tr>;
    case "th_open":
      return <th class={alignment(token)}>{children}</th>;
    case "td_open":
      return <td class={alignment(token)}>{children}</td>;
    case "em_open":
      return <em>{children}</em>;
    case "strong_open":
      return <strong>{children}</strong>;
    case "s_open":
      return <s>{children}</s>;
    case "link_open":
      return link(token.attrGet("href"), children);
    default:
      return <Fragment>{children}</Fragment>;
  }
}

function leaf(token) {
  switch (token.type) {
    case "inline":
      return <Fragment>{elements(token.children)}</Fragment>;
    case "softbreak":
    case "hardbreak":
      return <br />;
    case "code_inline":
      return <code>{token.content}</code>;
    case "fence":
    case "code_block":
      return <CodeBlock language={token.info.trim().split(/\s+/)[0]} code={token.content.replace(/\n$/, "")} />;
    case "hr":
      return <hr />;
    case "image":
      // pictures are not loaded: their addresses could carry the conversation elsewhere
      return link(token.attrGet("src"), ["🖼 ", token.content || "picture"]);
    case "math_inline":
    case "math_block":
      return <Formula tex={token.content} display={token.type === "math_block"} />;
    default:
      return token.content;
  }
}

const alignment = token => /text-align:(\w+)/.exec(token.attrGet("style") ?? "")?.[1];

/** A link with http, https or mailto. Other addresses become plain text. */
function link(address, children) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return <span class="nolink">{children}</span>;
  return (
    <a href={address} title={address} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}
