//! Checks that a description's numbers are usable and consistent.

use super::{
    Attention, Block, Config, ConfigError, DeltaNet, Gating, Indexer, Latent, Mixer, Mixing, NGramHead,
    NGrams, Norms, Rope, RopeScaling, Router, RouterInput, StateSpace, Streams,
};

/// The most experts of a token; more than any model uses.
pub(crate) const EXPERTS_USED_MAX: usize = 64;

/// The most groups of experts; more than any model has.
pub(crate) const GROUPS_MAX: usize = 64;

/// The widest per-layer embedding; buffers of rounded vectors hold it.
const PER_LAYER_WIDTH_MAX: usize = 4096;

/// The most values of a vector that buffers of rounded vectors hold in every model.
const ROUNDED_MAX: usize = 4096;

/// The most positions of a convolution; more than any model has.
const TAPS_MAX: usize = 64;

impl Config {
    /// All problems with the numbers; empty if they are usable.
    ///
    /// Includes the rule that all layers have equal networks, because their tables have one shape.
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = Problems(Vec::new());
        problems.sizes(&[
            ("the vocabulary", self.vocabulary, 1 << 22),
            ("the width of the model", self.width, 1 << 18),
            ("the number of layers", self.layers(), 1 << 12),
            ("the number of blocks", self.blocks.len(), 1 << 12),
            ("the context", self.context, 1 << 26),
        ]);
        if self.blocks.len() > 1 << 12 {
            return problems.0;
        }
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon < 1.0) {
            let (what, limit) = ("the epsilon of the norms", " below 1");
            problems.0.push(ConfigError::Constant { what, found: self.norm_epsilon, limit });
        }
        problems.constants(&[
            ("the factor of the embedding", self.embedding_scale),
            ("the factor of the logits", self.logit_scale),
            ("the bound of the logits", self.logit_softcap.unwrap_or(1.0)),
        ]);
        let Some(last) = self.blocks.last() else { return problems.0 };
        if last.network().is_none() {
            let what =
                "a last block without a feed-forward network, or without experts where others have some";
            problems.0.push(ConfigError::NotImplemented { what });
            return problems.0;
        }
        if self.attentions().next().is_none() {
            let what = "a model without a layer that has keys and values";
            problems.0.push(ConfigError::NotImplemented { what });
            return problems.0;
        }
        let network = self.network();
        if let Some(own) = self.per_layer_width {
            problems.sizes(&[("the width of per-layer embeddings", own, PER_LAYER_WIDTH_MAX)]);
        }
        if let Some(streams) = self.streams {
            problems.sizes(&[("the number of residual streams", streams.count, Streams::COUNT_MAX)]);
            if let Mixing::Gated { rank } = streams.mixing {
                problems.sizes(&[("the rank of the gates of residual streams", rank, self.width)]);
            }
        }
        if let Some(ngrams) = &self.ngrams {
            problems.ngrams(ngrams, self);
        }
        for (layer, block) in self.blocks.iter().enumerate() {
            let alternates = self.streams.is_some_and(|streams| !streams.are_gated());
            problems.branch(layer, block, self.width, alternates);
            if self.streams.is_some_and(Streams::are_gated)
                && (block.norms != Norms::Neither || block.mixer.is_none() || block.feed_forward.is_none())
            {
                let rule =
                    "gated residual streams have a mixer and a network, and norms of their own".to_owned();
                problems.contradiction("the layer of a block", layer, rule);
            }
            match &block.mixer {
                None => {}
                Some(Mixer::Attention(attention)) => {
                    problems.attention(attention, &self.ropes);
                    if let Some(indexer) = attention.indexer {
                        problems.indexer(indexer, attention, &self.ropes, self.streams.is_some());
                    }
                    problems.shared(layer, attention, &self.blocks);
                    problems.latent(attention, self.width, &self.ropes);
                    if self.attentions().any(|other| other.latent != attention.latent) {
                        problems.0.push(ConfigError::Differs { what: "latent attention", layer });
                    }
                }
                Some(Mixer::Convolution(convolution)) => problems.taps(convolution.taps),
                Some(Mixer::DeltaNet(net)) => problems.delta_net(net, self.width),
                Some(Mixer::StateSpace(space)) => problems.state_space(space),
            }
            problems.constants(&[("the factor of a block's output", block.residual_scale)]);
            if let Some(resident) = block.resident() {
                problems.sizes(&[("the number of neurons", resident.neurons, 1 << 22)]);
                if resident.biases || resident.router.is_some() || resident.shared_neurons.is_some() {
                    let rule = "a network that is always in memory has neither experts nor biases".to_owned();
                    problems.contradiction("the layer of a network", layer, rule);
                }
            }
            let cutoff = block.feed_forward.as_ref().and_then(|network| network.gate_cutoff);
            if cutoff.is_some_and(|cutoff| !cutoff.is_finite()) {
                let found = cutoff.unwrap_or_default();
                problems.0.push(ConfigError::Constant { what: "the cutoff of gates", found, limit: "" });
            }
            if cutoff.is_some() && block.network().is_some() {
                let rule = "gates of neurons that are read one by one have no cutoff".to_owned();
                problems.contradiction("the layer of a network", layer, rule);
            }
            if block.network().is_some_and(|own| own != network) {
                problems.0.push(ConfigError::Differs { what: "feed-forward network", layer });
            }
            let reads_before =
                |router: &Router| router.input == RouterInput::BeforeMixer && block.mixer.is_none();
            if block.network().and_then(|network| network.router.as_ref()).is_some_and(reads_before) {
                let rule = "its router reads the mixer's input, and there is no mixer".to_owned();
                problems.contradiction("the layer of a network", layer, rule);
            }
            if !problems.0.is_empty() {
                break; // a problem of one layer is usually one of many
            }
        }
        problems.sizes(&[
            ("the number of neurons", network.neurons, 1 << 22),
            ("the number of a shared expert's neurons", network.shared_neurons.unwrap_or(1), 1 << 22),
        ]);
        if network.biases && !network.activation.is_gated() {
            let rule = "a network without gates has no biases".to_owned();
            problems.contradiction("the number of neurons with biases", network.neurons, rule);
        }
        let experts = network.router.as_ref().map_or(1, |router| router.experts);
        if experts.saturating_mul(network.neurons) > u32::MAX as usize && problems.0.is_empty() {
            let rule = format!("{experts} experts have more together than can be numbered");
            problems.contradiction("the number of neurons", network.neurons, rule);
        }
        match (&network.router, network.shared_neurons) {
            (Some(router), _) => problems.router(router),
            (None, Some(shared)) => {
                let rule = "there are no experts".to_owned();
                problems.contradiction("the number of a shared expert's neurons", shared, rule);
            }
            (None, None) => {}
        }
        if network.shared_norms && network.shared_neurons.is_none() {
            let rule = "norms beside the experts are of a network there".to_owned();
            problems.contradiction("the number of a shared expert's neurons", 0, rule);
        }
        problems.0
    }

    /// The first of [`Config::problems`].
    ///
    /// # Errors
    /// If there is a problem.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }
}

/// Collects problems.
struct Problems(Vec<ConfigError>);

impl Problems {
    /// Checks that sizes are between 1 and their limit; the product of any three limits fits 64 bits.
    fn sizes(&mut self, sizes: &[(&'static str, usize, usize)]) {
        for &(what, found, max) in sizes {
            if !(1..=max).contains(&found) {
                self.0.push(ConfigError::Size { what, found: found as u64, max: max as u64 });
            }
        }
    }

    /// Checks that numbers are finite and positive.
    fn constants(&mut self, constants: &[(&'static str, f32)]) {
        for &(what, found) in constants {
            if !(found.is_finite() && found > 0.0) {
                self.0.push(ConfigError::Constant { what, found, limit: "" });
            }
        }
    }

    fn contradiction(&mut self, what: &'static str, found: usize, rule: String) {
        self.0.push(ConfigError::Contradiction { what, found: found as u64, rule });
    }

    fn attention(&mut self, a: &Attention, ropes: &[Rope]) {
        self.sizes(&[
            ("the number of heads", a.heads, 1 << 12),
            ("the number of key and value heads", a.kv_heads, 1 << 12),
            ("the width of a head", a.head_width, 1 << 14),
            ("the window of attention", a.window.unwrap_or(1), 1 << 26),
        ]);
        if !a.head_width.is_multiple_of(2) {
            self.contradiction("the width of a head", a.head_width, "it must be even".to_owned());
        }
        if a.kv_heads > 0 && !a.heads.is_multiple_of(a.kv_heads) {
            let rule = format!("it must divide the number of heads, {}", a.heads);
            self.contradiction("the number of key and value heads", a.kv_heads, rule);
        }
        if a.values_are_keys && a.biases.value {
            let rule = "values that are keys have no bias".to_owned();
            self.contradiction("the number of key and value heads", a.kv_heads, rule);
        }
        self.constants(&[
            ("the factor of the scores", a.scale),
            ("the bound of the scores", a.softcap.unwrap_or(1.0)),
        ]);
        if let Some(temperature) = a.temperature {
            self.sizes(&[("the context of the queries' factor", temperature.original_context, 1 << 26)]);
            self.constants(&[("the growth of the queries' factor", temperature.slope)]);
        }
        match a.rope.map(|rope| ropes.get(rope).ok_or(rope)) {
            Some(Ok(rope)) => self.rope(rope, a.head_width),
            Some(Err(rope)) => {
                self.contradiction("the rotary embedding", rope, format!("there are {}", ropes.len()));
            }
            None => {}
        }
    }

    /// Checks that every head's rows are in the table, and that the block can keep their state.
    fn ngrams(&mut self, ngrams: &NGrams, config: &Config) {
        let (tokens, heads) = (ngrams.tokens(), ngrams.heads.len());
        self.sizes(&[
            ("the number of tokens of n-grams", tokens, NGrams::TOKENS_MAX),
            ("the number of heads of n-grams", heads, NGrams::HEADS_MAX),
            ("the number of rows of n-grams", ngrams.rows, u32::MAX as usize),
            ("the values of a row of n-grams", ngrams.row_width, PER_LAYER_WIDTH_MAX),
            ("the values of all rows of n-grams", ngrams.values(), ROUNDED_MAX.max(config.width)),
        ]);
        self.taps(ngrams.taps);
        if tokens < 2 || !heads.is_multiple_of(tokens.saturating_sub(1).max(1)) {
            let rule = format!("equally many read pairs and n-grams of up to {tokens} tokens");
            self.contradiction("the number of heads of n-grams", heads, rule);
        }
        let outside = |head: &NGramHead| {
            let end = head.offset.checked_add(head.rows);
            head.rows == 0 || end.is_none_or(|end| end > ngrams.rows as u64)
        };
        if ngrams.heads.iter().any(outside) {
            let rule = "a head of n-grams reads beyond them".to_owned();
            self.contradiction("the number of rows of n-grams", ngrams.rows, rule);
        }
        if !config.streams.is_some_and(Streams::are_gated) || config.per_layer_width.is_some() {
            let rule = "n-grams are added to gated residual streams, without per-layer embeddings".to_owned();
            self.contradiction("the block with n-grams", ngrams.block, rule);
        }
        if config.blocks.get(ngrams.block).and_then(Block::recurrent).is_none() {
            let rule = "n-grams need a block with a recurrent state, which keeps theirs".to_owned();
            self.contradiction("the block with n-grams", ngrams.block, rule);
        }
    }

    /// Checks the rank of the branch beside a mixer. It reads the stream before the mixer, which only models
    /// with several streams keep.
    fn branch(&mut self, layer: usize, block: &Block, width: usize, alternates: bool) {
        let Some(rank) = block.branch_rank else { return };
        self.sizes(&[("the rank of a branch beside a mixer", rank, width)]);
        if block.mixer.is_none() || !alternates {
            let rule = "a branch beside its mixer needs several residual streams".to_owned();
            self.contradiction("the layer of a block", layer, rule);
        }
    }

    /// Checks the sizes of an indexer, and refuses what hides positions in another way.
    fn indexer(&mut self, indexer: Indexer, a: &Attention, ropes: &[Rope], has_streams: bool) {
        self.sizes(&[
            ("the number of an indexer's heads", indexer.heads, 1 << 10),
            ("the width of an indexer's head", indexer.width, 1 << 12),
            ("the positions of an indexer's block", indexer.positions, 1 << 12),
            ("the blocks that an indexer chooses", indexer.blocks, 1 << 12),
        ]);
        let rotated = a.rope.and_then(|rope| ropes.get(rope)).map_or(0, |rope| rope.width);
        if !indexer.width.is_multiple_of(2) || rotated > indexer.width {
            let rule = format!("it must be even, and {rotated} values are rotated");
            self.contradiction("the width of an indexer's head", indexer.width, rule);
        }
        if indexer.width.saturating_mul(4) > a.query_width() {
            let rule =
                format!("all queries have {} values, of which it is at most a quarter", a.query_width());
            self.contradiction("the width of an indexer's head", indexer.width, rule);
        }
        if !has_streams || a.window.is_some() || a.sinks || a.shares.is_some() || a.latent.is_some() {
            let rule =
                "attention with an indexer has several streams, and no window, sinks, latent or shared keys"
                    .to_owned();
            self.contradiction("the number of an indexer's heads", indexer.heads, rule);
        }
    }

    /// Checks that a block whose keys and values are another's finds the same heads there.
    fn shared(&mut self, block: usize, a: &Attention, blocks: &[Block]) {
        let Some(owner) = a.shares else { return };
        let of_owner = blocks[..block].get(owner).and_then(Block::attention);
        let alike = of_owner.is_some_and(|own| {
            let heads = (own.kv_heads, own.head_width) == (a.kv_heads, a.head_width);
            heads && own.shares.is_none() && own.latent.is_none() && a.latent.is_none()
        });
        let plain = !a.biases.key && !a.biases.value && !a.values_are_keys && !a.value_norm;
        if !alike || !plain {
            let rule = format!(
                "block {block} reads its keys, which must be of an earlier block with the same heads"
            );
            self.contradiction("a block with shared keys and values", owner, rule);
        }
    }

    /// Checks the sizes of latent attention, and refuses everything that needs projected keys and values.
    fn latent(&mut self, a: &Attention, width: usize, ropes: &[Rope]) {
        let Some(latent) = a.latent else { return };
        let Latent { query_rank, rank, plain, rotated, value, gate: _ } = latent;
        self.sizes(&[
            ("the rank of queries", query_rank.unwrap_or(1), width),
            ("the rank of keys and values", rank, width),
            ("the values of a query that are not rotated", plain, width),
            ("the values of a query that are rotated", rotated, 1 << 14),
            ("the values of a head's value", value, 1 << 14),
        ]);
        if rank.saturating_add(rotated) != a.head_width {
            let rule = format!("of keys and values {rank} and {rotated} are kept");
            self.contradiction("the width of what is kept", a.head_width, rule);
        }
        if let Some(rope) = a.rope.and_then(|rope| ropes.get(rope)).filter(|rope| rope.width != rotated) {
            let rule = format!("{rotated} values of a query are rotated");
            self.contradiction("the rotated width of a head", rope.width, rule);
        }
        let bare = Attention {
            scale: a.scale,
            rope: a.rope,
            latent: a.latent,
            ..Attention::plain(a.heads, 1, a.head_width)
        };
        if *a != bare {
            let rule = "latent attention has neither biases, norms of heads, gates, windows, sinks nor bounds, and one head is kept";
            self.contradiction("the number of key and value heads", a.kv_heads, rule.to_owned());
        }
    }

    /// Checks the positions of a convolution: at least two, otherwise there is no state.
    fn taps(&mut self, taps: usize) {
        if !(2..=TAPS_MAX).contains(&taps) {
            let rule = format!("a convolution is over 2 to {TAPS_MAX}");
            self.contradiction("the number of positions of a convolution", taps, rule);
        }
    }

    fn delta_net(&mut self, net: &DeltaNet, width: usize) {
        self.sizes(&[
            ("the number of key heads of a delta net", net.key_heads, 1 << 12),
            ("the number of value heads of a delta net", net.value_heads, 1 << 12),
            ("the width of a delta net's head", net.head_width, DeltaNet::HEAD_WIDTH_MAX),
        ]);
        if net.key_heads > 0 && !net.value_heads.is_multiple_of(net.key_heads) {
            let rule = format!("it must divide the number of value heads, {}", net.value_heads);
            self.contradiction("the number of key heads of a delta net", net.key_heads, rule);
        }
        self.taps(net.taps);
        let Some(decay) = net.channel_decay else { return };
        self.sizes(&[("the rank of a delta net's decays", decay.rank.unwrap_or(1), width)]);
        if net.grouped || net.key_heads != net.value_heads {
            let rule = "with decays of channels each value head has its own key head".to_owned();
            self.contradiction("the number of key heads of a delta net", net.key_heads, rule);
        }
        self.constants(&[("the bound of a decay's logarithm", decay.bound.unwrap_or(1.0))]);
    }

    fn state_space(&mut self, space: &StateSpace) {
        self.sizes(&[
            ("the number of heads of a state space", space.heads, 1 << 12),
            ("the width of a state space's head", space.head_width, 1 << 12),
            ("the number of groups of a state space", space.groups, 1 << 12),
            ("the values of a state", space.state, 1 << 12),
        ]);
        if space.groups > 0 {
            if !space.heads.is_multiple_of(space.groups) {
                let rule = format!("it must divide the number of heads, {}", space.heads);
                self.contradiction("the number of groups of a state space", space.groups, rule);
            }
            let group = space.inner_width() / space.groups;
            self.sizes(&[("the width of a group of a state space", group, StateSpace::GROUP_WIDTH_MAX)]);
        }
        self.taps(space.taps);
    }

    fn rope(&mut self, rope: &Rope, head_width: usize) {
        self.sizes(&[("the rotated width of a head", rope.width, 1 << 14)]);
        if rope.width > head_width || !rope.width.is_multiple_of(2) {
            let rule = format!("it must be even and at most the width of a head, {head_width}");
            self.contradiction("the rotated width of a head", rope.width, rule);
        }
        self.constants(&[("the rotary base", rope.base)]);
        self.constants(&[("the magnitude of the rotary embedding", rope.magnitude)]);
        if !rope.divisors.is_empty() {
            self.divisors(&rope.divisors, rope.width / 2);
        }
        if let Some(long) = &rope.long {
            self.sizes(&[("the context before the rotary scaling", long.original_context, 1 << 26)]);
            self.divisors(&long.divisors, rope.width / 2);
        }
        match rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => self.constants(&[("the factor of the rotary scaling", factor)]),
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, exact: _ } => {
                self.sizes(&[("the context before the rotary scaling", original_context, 1 << 26)]);
                self.constants(&[
                    ("the factor of the rotary scaling", factor),
                    ("the fast limit of the rotary scaling", beta_fast),
                    ("the slow limit of the rotary scaling", beta_slow),
                ]);
            }
        }
    }

    fn divisors(&mut self, divisors: &[f32], pairs: usize) {
        if divisors.len() != pairs {
            let rule = format!("a head has {pairs} pairs");
            self.contradiction("the number of divisors of rotary frequencies", divisors.len(), rule);
        }
        if let Some(&found) = divisors.iter().find(|divisor| !(divisor.is_finite() && **divisor > 0.0)) {
            self.constants(&[("a divisor of rotary frequencies", found)]);
        }
    }

    fn router(&mut self, router: &Router) {
        self.sizes(&[
            ("the number of experts", router.experts, 1 << 12),
            ("the number of experts used", router.experts_used, EXPERTS_USED_MAX),
        ]);
        if router.experts_used > router.experts {
            let rule = format!("there are {}", router.experts);
            self.contradiction("the number of experts used", router.experts_used, rule);
        }
        self.constants(&[("the factor of the experts' weights", router.scale)]);
        let Some(groups) = router.groups else { return };
        self.sizes(&[("the number of groups of experts", groups.count, GROUPS_MAX)]);
        if groups.count == 0 || !router.experts.is_multiple_of(groups.count) {
            let rule = format!("it must divide the number of experts, {}", router.experts);
            self.contradiction("the number of groups of experts", groups.count, rule);
            return;
        }
        let of_group = router.experts / groups.count;
        self.sizes(&[
            ("the number of groups used", groups.used, groups.count),
            ("the number of experts that groups are compared by", groups.best, of_group),
        ]);
        if groups.used.saturating_mul(of_group) < router.experts_used {
            let rule = format!("a token visits {} experts, and a group has {of_group}", router.experts_used);
            self.contradiction("the number of groups used", groups.used, rule);
        }
        if router.gating == Gating::SelectedSoftmax {
            let rule = "groups are compared by probabilities, and this router has none".to_owned();
            self.contradiction("the number of groups of experts", groups.count, rule);
        }
    }
}
