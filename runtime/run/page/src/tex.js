// TeX to MathML, which browsers render and read aloud. Covers what models usually write, not all of TeX.
//
// A formula becomes a tree of `{ tag, children, ...attributes }` and texts. Unknown commands stay text.

const LETTERS = {
  alpha: "α", beta: "β", gamma: "γ", delta: "δ", epsilon: "ϵ", varepsilon: "ε", zeta: "ζ", eta: "η", theta: "θ", vartheta: "ϑ", iota: "ι", kappa: "κ",
  lambda: "λ", mu: "μ", nu: "ν", xi: "ξ", pi: "π", rho: "ρ", sigma: "σ", tau: "τ", upsilon: "υ", phi: "ϕ", varphi: "φ", chi: "χ", psi: "ψ", omega: "ω",
  Gamma: "Γ", Delta: "Δ", Theta: "Θ", Lambda: "Λ", Xi: "Ξ", Pi: "Π", Sigma: "Σ", Phi: "Φ", Psi: "Ψ", Omega: "Ω",
  ell: "ℓ", hbar: "ℏ", infty: "∞", partial: "∂", nabla: "∇", emptyset: "∅", varnothing: "∅", Re: "ℜ", Im: "ℑ", aleph: "ℵ", degree: "°",
};
const OPERATORS = {
  cdot: "⋅", times: "×", div: "÷", pm: "±", mp: "∓", ast: "∗", circ: "∘", oplus: "⊕", otimes: "⊗", wedge: "∧", land: "∧", vee: "∨", lor: "∨", neg: "¬", lnot: "¬",
  le: "≤", leq: "≤", ge: "≥", geq: "≥", ne: "≠", neq: "≠", ll: "≪", gg: "≫", approx: "≈", equiv: "≡", sim: "∼", simeq: "≃", cong: "≅", propto: "∝", mid: "∣", nmid: "∤", parallel: "∥", perp: "⊥",
  in: "∈", notin: "∉", ni: "∋", subset: "⊂", subseteq: "⊆", supset: "⊃", supseteq: "⊇", cup: "∪", cap: "∩", setminus: "∖", forall: "∀", exists: "∃", therefore: "∴", because: "∵",
  to: "→", rightarrow: "→", leftarrow: "←", leftrightarrow: "↔", Rightarrow: "⇒", implies: "⟹", Leftarrow: "⇐", Leftrightarrow: "⇔", iff: "⟺", mapsto: "↦", uparrow: "↑", downarrow: "↓",
  sum: "∑", prod: "∏", int: "∫", iint: "∬", oint: "∮", bigcup: "⋃", bigcap: "⋂", dots: "…", ldots: "…", cdots: "⋯", vdots: "⋮", ddots: "⋱", prime: "′",
  langle: "⟨", rangle: "⟩", lfloor: "⌊", rfloor: "⌋", lceil: "⌈", rceil: "⌉", lvert: "|", rvert: "|", lVert: "‖", rVert: "‖", vert: "|", Vert: "‖", "|": "‖",
  "{": "{", "}": "}", "%": "%", "#": "#", "&": "&", $: "$", _: "_", colon: ":",
};
const SPACES = { ",": ".17em", ":": ".22em", ">": ".22em", ";": ".28em", " ": ".33em", quad: "1em", qquad: "2em", "!": "-.17em" };
const FUNCTIONS = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp min max sup inf lim limsup liminf det dim ker gcd deg arg Pr argmax argmin mod".split(" "));
const BELOW = new Set(["∑", "∏", "⋃", "⋂", "lim", "limsup", "liminf", "min", "max", "sup", "inf", "argmax", "argmin"]);
const FONTS = { mathbf: "bold", boldsymbol: "bold", bm: "bold", mathbb: "double-struck", mathcal: "script", mathscr: "script", mathfrak: "fraktur", mathrm: "normal", mathsf: "sans-serif", mathtt: "monospace", mathit: "italic" };
const ACCENTS = { hat: "^", widehat: "^", bar: "¯", overline: "¯", tilde: "~", widetilde: "~", vec: "→", dot: "˙", ddot: "¨" };
const FENCES = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], gathered: ["", ""], split: ["", ""], array: ["", ""], equation: ["", ""], "equation*": ["", ""] };
/** First characters of mathematical letters in Unicode, capitals and small ones; some capitals are elsewhere. */
const ALPHABETS = { bold: [0x1d400, 0x1d41a, 0x1d7ce], "double-struck": [0x1d538, 0x1d552, 0x1d7d8], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e] };
const ELSEWHERE = { "double-struck": { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }, script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" }, fraktur: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" } };
const DEPTH_MAX = 40;

const make = (tag, children, attributes) => ({ tag, children: [].concat(children), ...attributes });
const row = children => (children.length === 1 ? children[0] : make("mrow", children));

/** A formula as a tree, or `null` if it is nested too deeply. */
export function parse(tex) {
  const tokens = tex.match(/\\(?:[a-zA-Z]+\*?|[\s\S])|\d+(?:\.\d+)?|\s+|[\s\S]/gu) ?? [];
  try {
    return row(new Parser(tokens).list(() => false, 0));
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
}

class Parser {
  constructor(tokens) {
    this.tokens = tokens;
    this.at = 0;
  }

  spaces() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at += 1;
  }

  peek() {
    this.spaces();
    return this.tokens[this.at];
  }

  /** The items up to a token that ends the list; takes that token, too. */
  list(ends, depth) {
    if (depth > DEPTH_MAX) throw new RangeError("too deep");
    const items = [];
    for (let token; (token = this.peek()) !== undefined; ) {
      if (ends(token)) {
        this.at += 1;
        break;
      }
      items.push(this.scripts(this.atom(depth), depth));
    }
    return items;
  }

  /** An argument: a group in braces or one token. */
  argument(depth) {
    const token = this.peek();
    if (token === undefined) return make("mrow", []);
    // \frac12 is a half
    if (/^\d./.test(token)) this.tokens.splice(this.at, 1, token[0], token.slice(1));
    return this.atom(depth + 1);
  }

  /** An argument as source text. */
  raw() {
    if (this.peek() !== "{") return this.tokens[this.at++] ?? "";
    let text = "";
    for (let open = 1; ++this.at < this.tokens.length; text += this.tokens[this.at]) {
      if (this.tokens[this.at] === "{") open += 1;
      if (this.tokens[this.at] === "}" && --open === 0) break;
    }
    this.at += 1;
    return text;
  }

  /** An item with its subscript and superscript. */
  scripts(base, depth) {
    let sub, sup;
    for (let token; (token = this.peek()); ) {
      if (token === "_" && !sub) sub = (this.at++, this.argument(depth));
      else if (token === "^" && !sup) sup = (this.at++, this.argument(depth));
      else if (token === "'" && !sup) {
        let primes = "";
        while (this.tokens[this.at] === "'") (primes += "′"), (this.at += 1);
        sup = make("mo", primes);
      } else break;
    }
    const isBelow = BELOW.has(base.children?.[0]);
    const tag = sub && sup ? (isBelow ? "munderover" : "msubsup") : sub ? (isBelow ? "munder" : "msub") : isBelow ? "mover" : "msup";
    return sub || sup ? make(tag, [base, sub, sup].filter(Boolean)) : base;
  }

  atom(depth) {
    const token = this.peek();
    this.at += 1;
    if (token === "{") return row(this.list(token => token === "}", depth + 1));
    if (token.startsWith("\\") && token.length > 1) return this.command(token.slice(1), depth);
    if (/^\d/.test(token)) return make("mn", token);
    if (/^\p{L}/u.test(token)) return make("mi", token);
    return make("mo", token === "-" ? "−" : token === "~" ? " " : token, /[()[\]|]/.test(token) ? { stretchy: "false" } : {});
  }

  command(name, depth) {
    if (Object.hasOwn(LETTERS, name)) return make("mi", LETTERS[name]);
    if (Object.hasOwn(OPERATORS, name)) return make("mo", OPERATORS[name]);
    if (Object.hasOwn(SPACES, name)) return make("mspace", [], { width: SPACES[name] });
    if (FUNCTIONS.has(name)) return make("mi", name);
    if (Object.hasOwn(FONTS, name)) return font(this.argument(depth), FONTS[name]);
    if (Object.hasOwn(ACCENTS, name)) return make("mover", [this.argument(depth), make("mo", ACCENTS[name])], { accent: "true" });
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
      case "cfrac":
        return make("mfrac", [this.argument(depth), this.argument(depth)]);
      case "binom":
        return make("mrow", [make("mo", "("), make("mfrac", [this.argument(depth), this.argument(depth)], { linethickness: "0" }), make("mo", ")")]);
      case "sqrt": {
        if (this.peek() !== "[") return make("msqrt", this.argument(depth));
        this.at += 1;
        const degree = row(this.list(token => token === "]", depth + 1));
        return make("mroot", [this.argument(depth), degree]);
      }
      case "underline":
        return make("munder", [this.argument(depth), make("mo", "_")]);
      case "boxed":
        return this.argument(depth);
      case "text":
      case "textbf":
      case "textit":
      case "textrm":
      case "mbox":
        // MathML drops ordinary spaces at the ends of a text
        return make("mtext", this.raw().replaceAll(" ", "\u00a0"));
      case "operatorname":
        return make("mi", this.raw());
      case "left":
      case "right":
      case "middle":
      case "big":
      case "Big":
      case "bigg":
      case "Bigg":
      case "bigl":
      case "bigr":
      case "Bigl":
      case "Bigr": {
        const fence = this.peek();
        if (fence !== undefined) this.at += 1;
        if (fence === undefined || fence === ".") return make("mrow", []);
        const word = fence.replace(/^\\/, "");
        const isWord = word !== fence && Object.hasOwn(OPERATORS, word);
        return make("mo", isWord ? OPERATORS[word] : word, { stretchy: "true" });
      }
      case "begin":
        return this.environment(this.raw(), depth);
      case "displaystyle":
      case "textstyle":
      case "limits":
      case "nolimits":
      case "nonumber":
      case "notag":
        return make("mrow", []);
      default:
        return make("mtext", `\\${name}`);
    }
  }

  /** Rows and cells up to the end of an environment. */
  environment(name, depth) {
    if (name === "array") this.raw();
    const rows = [[]];
    for (let last; last !== "\\end" && this.peek() !== undefined; ) {
      const cell = this.list(token => ((last = token), token === "&" || token === "\\\\" || token === "\\end"), depth + 1);
      rows.at(-1).push(make("mtd", cell));
      if (last === "\\\\") rows.push([]);
    }
    this.raw();
    const table = make("mtable", rows.filter(cells => cells.some(cell => cell.children.length)).map(cells => make("mtr", cells)), name === "cases" || /align|split/.test(name) ? { columnalign: "left" } : {});
    const [open, close] = Object.hasOwn(FENCES, name) ? FENCES[name] : ["", ""];
    return make("mrow", [open && make("mo", open), table, close && make("mo", close)].filter(Boolean));
  }
}

/** Letters of a tree in another alphabet. */
function font(node, name) {
  if (typeof node === "string") return node;
  if (node.tag !== "mi" && node.tag !== "mn") return { ...node, children: node.children.map(child => font(child, name)) };
  const text = node.children[0];
  if (!ALPHABETS[name]) return make("mi", text, name === "italic" ? {} : { mathvariant: "normal" });
  const [capital, small, digit] = ALPHABETS[name];
  const letter = character => {
    if (ELSEWHERE[name]?.[character]) return ELSEWHERE[name][character];
    const from = /[A-Z]/.test(character) ? [capital, "A"] : /[a-z]/.test(character) ? [small, "a"] : /\d/.test(character) && digit ? [digit, "0"] : null;
    return from ? String.fromCodePoint(from[0] + character.charCodeAt(0) - from[1].charCodeAt(0)) : character;
  };
  return make(node.tag, [...text].map(letter).join(""), { mathvariant: "normal" });
}
