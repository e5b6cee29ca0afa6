//! The ranges of the values of a `model.toml`, each by itself and beside the others.

use super::{
    Architecture, ContainerIdentity, DenseQuality, Drafts, GAP_RANKS, Heads, KvLoss, Latent, LayerActivity,
    Level, LevelKind, LevelLayer, Model, ModelProvenance, PERPLEXITY_MAX, Parts, PerLayer, Recurrent,
    ReuseAxes, Streams,
};
use crate::check::{
    ACTIVATIONS, At, BYTES_MAX, CONTEXT_MAX, Checked, FORMATS, LAYERS_MAX, LOSS_MAX, LOSSLESS_MAX,
    NEURONS_MAX, TEXT_BYTES_MAX,
};
use crate::engine::DRAFT_TOKENS_MAX;
use crate::expectation::{QUANTILES, over_mean_max};
use crate::layout::BundleLayout;
use crate::{KvFormat, SCHEMA};

/// Activation functions: between gate and up, or of up alone.
const FUNCTIONS: [&str; 6] = ["relu", "silu", "drelu", "gelu", "swiglu-oai", "relu-squared"];
/// Entries of an axis of the miss-rate surfaces.
const AXIS_MAX: usize = 1024;
/// The widest gap of a read, in ranks.
const WIDE_GAP_RANKS_MAX: u64 = 1024;
/// The largest improvement of perplexity by a level, as a negative fraction.
pub(crate) const PERPLEXITY_CHANGE_MIN: f64 = -0.5;
/// Maximum relative difference of a figure and its recomputation, each rounded to six digits.
const ROUNDING: f64 = 1e-4;
/// Maximum relative difference of a mean of neurons and its share of neurons.
const MEAN: f64 = 0.05;
/// Maximum rise of misses in a larger cache, from noise in a policy's measurement.
const RISE_MAX: f64 = 0.1;
/// The most operations of a token.
const FLOPS_MAX: u64 = 1 << 60;
/// The most bytes of a row of a neuron.
const ROW_BYTES_MAX: u64 = 1 << 28;

/// The whole file.
pub(super) fn check(model: &Model, at: &At<'_>) -> Checked {
    let Model {
        schema,
        name,
        fingerprint,
        activations,
        provenance: of_provenance,
        architecture: a,
        parts: of_parts,
        container: of_container,
        dense: DenseQuality { perplexity },
        kv_formats: of_kv,
        drafts: of_drafts,
        reuse: of_reuse,
        layers: of_layers,
        levels: of_levels,
    } = model;
    at.key("schema").count(*schema, SCHEMA.into(), SCHEMA.into())?;
    at.key("name").text(name)?;
    at.key("fingerprint").plain(fingerprint)?;
    at.key("activations").named(activations, &ACTIVATIONS)?;
    provenance(of_provenance, &at.key("provenance"))?;
    let slices = of_parts.bundle.slice_neurons > 1;
    // of a dense model, whole layers
    let whole = slices && of_levels.iter().all(|level| level.kind == LevelKind::Dense);
    architecture(a, whole, &at.key("architecture"))?;
    parts(of_parts, a, &at.key("parts"))?;
    at.key("dense").key("perplexity").number(*perplexity, 1.0, PERPLEXITY_MAX)?;
    at.key("kv_formats").each(of_kv, |at, loss| kv_loss(loss, model, at))?;
    let twice =
        (1..of_kv.len()).find(|&index| of_kv[..index].iter().any(|l| l.format == of_kv[index].format));
    at.key("kv_formats").holds(twice.is_none(), || "name a format twice; name each once".to_owned())?;
    if let Some(of_drafts) = of_drafts {
        drafts(of_drafts, &at.key("drafts"))?;
    }
    reuse(of_reuse, &at.key("reuse"))?;
    let layers = at.key("layers");
    layers.length(of_layers.len(), a.layers as usize, "`architecture.layers` says")?;
    layers.each(of_layers, |at, layer| activity(layer, a, at))?;
    bundles(model, at)?;
    container(of_container, model, &at.key("container"))?;
    levels(of_levels, model, &at.key("levels"))
}

/// Means by draft length: no more tokens accepted than drafted.
fn drafts(drafts: &Drafts, at: &At<'_>) -> Checked {
    let Drafts { drafted_tokens, kept_tokens } = drafts;
    for (key, tokens) in [("drafted_tokens", drafted_tokens), ("kept_tokens", kept_tokens)] {
        let at = at.key(key);
        at.length(tokens.len(), DRAFT_TOKENS_MAX, "a step has rows for")?;
        at.each(tokens, |at, &tokens| at.number(tokens, 0.0, DRAFT_TOKENS_MAX as f64))?;
    }
    let most_of =
        |(at, (drafted, kept)): (usize, (&f64, &f64))| *drafted <= (at + 1) as f64 && kept <= drafted;
    let at = at.key("kept_tokens");
    at.note("no more than `drafts.drafted_tokens`, and those no more than their place in the list");
    at.holds(drafted_tokens.iter().zip(kept_tokens).enumerate().all(most_of), || {
        "has more than were drafted, or more were drafted than a draft has; profile the model again"
            .to_owned()
    })
}

/// Origins of a model's figures.
const ORIGINS: [&str; 4] = ["measured", "instant", "published", "assumed"];

fn provenance(provenance: &ModelProvenance, at: &At<'_>) -> Checked {
    let ModelProvenance {
        tool,
        origin,
        calibration_text,
        calibration_tokens,
        held_out_text,
        held_out_tokens,
        quick,
        routes,
        notes,
    } = provenance;
    at.key("tool").text(tool)?;
    at.key("origin").named(origin, &ORIGINS)?;
    for (key, hash) in [("calibration_text", calibration_text), ("held_out_text", held_out_text)] {
        let at = at.key(key);
        at.holds(hash.is_empty() == (origin != "measured"), || {
            format!("is `{hash}`; a profile that is measured has the hash of a text there, and no other has")
        })?;
        if !hash.is_empty() {
            at.plain(hash)?;
        }
        at.note("a hash where `provenance.origin` is `measured`, else empty");
    }
    for (key, tokens) in [("calibration_tokens", calibration_tokens), ("held_out_tokens", held_out_tokens)] {
        let at = at.key(key);
        at.count(*tokens, 0, BYTES_MAX)?;
        at.note("above 0 where `provenance.origin` is `measured`, up to 2^50");
        at.holds(*tokens > 0 || origin != "measured", || {
            "is 0; a profile that is measured saw a text".to_owned()
        })?;
    }
    at.key("quick").free(*quick);
    if let Some(hash) = routes {
        at.key("routes").plain(hash)?;
    }
    at.key("notes").note(&format!("lines of at most {TEXT_BYTES_MAX} bytes"));
    at.key("notes").each(notes, |at, note| at.text(note))
}

fn architecture(architecture: &Architecture, whole: bool, at: &At<'_>) -> Checked {
    let Architecture {
        family,
        activation,
        layers,
        width,
        neurons_per_expert,
        experts,
        experts_used,
        heads,
        kv_heads,
        head_width,
        gated_attention,
        kv_layers,
        shared_neurons,
        rotary_embeddings,
        vocabulary,
        context,
        weight_format,
        down_format,
        down_transposed,
        other_heads,
        sharing_heads,
        per_layer,
        streams,
        chosen_blocks,
        recurrent,
        latent,
    } = architecture;
    at.key("family").plain(family)?;
    at.key("activation").named(activation, &FUNCTIONS)?;
    at.key("layers").count(*layers, 1, LAYERS_MAX.into())?;
    at.key("width").count(*width, 1, 1 << 20)?;
    at.key("neurons_per_expert").count(*neurons_per_expert, 1, 1 << 22)?;
    at.key("experts").count(*experts, 1, 4096)?;
    at.key("experts").holds(architecture.neurons() <= NEURONS_MAX.into(), || {
        format!("is {experts}, which with {neurons_per_expert} neurons each are more than can be numbered")
    })?;
    at.key("experts_used").count(*experts_used, 1, (*experts).into())?;
    at.key("experts_used").note("1 to `architecture.experts`");
    heads_of(*heads, *kv_heads, *head_width, at)?;
    at.key("gated_attention").free(*gated_attention);
    if let Some(layers) = kv_layers {
        at.key("kv_layers").count(*layers, 1, LAYERS_MAX.into())?;
    }
    let others = at.key("other_heads");
    others.note("fewer layers in all than have keys and values");
    others.each(other_heads, heads_of_layers)?;
    let layers_of_others: u64 = other_heads.iter().map(|other| u64::from(other.layers)).sum();
    others.holds(layers_of_others < architecture.kv_layers().into(), || {
        format!("are of {layers_of_others} layers, and {} have keys and values", architecture.kv_layers())
    })?;
    at.key("sharing_heads").each(sharing_heads, heads_of_layers)?;
    at.key("shared_neurons").count(*shared_neurons, 0, 1 << 22)?;
    at.key("rotary_embeddings").count(*rotary_embeddings, 1, LAYERS_MAX.into())?;
    at.key("vocabulary").count(*vocabulary, 1, 1 << 24)?;
    at.key("context").count(*context, 1, CONTEXT_MAX.into())?;
    at.key("weight_format").named(weight_format, &FORMATS)?;
    at.key("down_format").named(down_format, &FORMATS)?;
    at.key("down_transposed").free(*down_transposed);
    at.key("down_transposed")
        .note("`true`, or `false` where every neuron fires, or every level requests whole experts or layers");
    at.key("down_transposed").holds(*down_transposed || architecture.always_fires() || whole, || {
        format!("is false, and neurons of {activation} are read one by one")
    })?;
    per_layer.map_or(Ok(()), |per_layer| per_layer_embeddings(per_layer, &at.key("per_layer")))?;
    at.key("chosen_blocks").count(*chosen_blocks, 0, 1 << 12)?;
    streams.map_or(Ok(()), |streams| residual_streams(streams, &at.key("streams")))?;
    recurrent.as_ref().map_or(Ok(()), |recurrent| recurrent_layers(recurrent, &at.key("recurrent")))?;
    let Some(latent) = latent else { return Ok(()) };
    at.key("latent").holds(*kv_heads == 1, || {
        format!("is there, and so are {kv_heads} key and value heads: one vector is kept, as of one head")
    })?;
    latent_attention(*latent, &at.key("latent"))
}

fn latent_attention(latent: Latent, at: &At<'_>) -> Checked {
    let Latent { projected_values, mixed_values } = latent;
    at.key("projected_values").count(projected_values, 1, 1 << 28)?;
    at.key("mixed_values").count(mixed_values, 1, 1 << 28)
}

/// The head shape of some layers.
fn heads_of_layers(at: &At<'_>, heads: &Heads) -> Checked {
    let Heads { layers, heads, kv_heads, head_width } = *heads;
    at.key("layers").count(layers, 1, LAYERS_MAX.into())?;
    heads_of(heads, kv_heads, head_width, at)
}

fn per_layer_embeddings(per_layer: PerLayer, at: &At<'_>) -> Checked {
    let PerLayer { width, row_values, row_bytes, rows, reads } = per_layer;
    at.key("width").count(width, 1, 4096)?;
    at.key("row_values").count(row_values, width.into(), 1 << 26)?;
    at.key("row_values").note("`architecture.per_layer.width` to 2^26");
    at.key("row_bytes").count(row_bytes, 1, ROW_BYTES_MAX)?;
    rows.map_or(Ok(()), |rows| at.key("rows").count(rows, 1, u32::MAX.into()))?;
    at.key("reads").count(reads, 1, 64)
}

fn residual_streams(streams: Streams, at: &At<'_>) -> Checked {
    let Streams { count, projected_values } = streams;
    at.key("count").count(count, 1, 64)?;
    at.key("projected_values").count(projected_values, 0, 1 << 22)
}

/// A head shape: the number of key and value heads divides the number of query heads.
fn heads_of(heads: u32, kv_heads: u32, head_width: u32, at: &At<'_>) -> Checked {
    at.key("heads").count(heads, 1, 1 << 14)?;
    let kv = at.key("kv_heads");
    kv.count(kv_heads, 1, heads.into())?;
    kv.note("a divisor of the query heads");
    kv.holds(heads.is_multiple_of(kv_heads), || {
        format!("is {kv_heads}, which does not divide the {heads} query heads")
    })?;
    at.key("head_width").count(head_width, 1, 1 << 14)
}

fn recurrent_layers(recurrent: &Recurrent, at: &At<'_>) -> Checked {
    let Recurrent { state_values, projected_values, mixed_values } = *recurrent;
    at.key("state_values").count(state_values, 1, BYTES_MAX / 8)?;
    at.key("projected_values").count(projected_values, 1, 1 << 22)?;
    at.key("mixed_values").count(mixed_values, 1, 1 << 22)
}

fn parts(parts: &Parts, a: &Architecture, at: &At<'_>) -> Checked {
    let Parts {
        embedding_bytes,
        head_bytes,
        head_read_bytes,
        attention_layer_bytes,
        router_layer_bytes,
        fixed_bytes,
        tokenizer_bytes,
        bundle,
    } = *parts;
    at.key("embedding_bytes").count(embedding_bytes, a.vocabulary.into(), BYTES_MAX)?;
    at.key("embedding_bytes").note("`architecture.vocabulary` to 2^50");
    at.key("head_bytes").bytes(head_bytes)?;
    let read = at.key("head_read_bytes");
    let head = if head_bytes == 0 { embedding_bytes } else { head_bytes };
    read.note("`parts.head_bytes`, or where those are 0 `parts.embedding_bytes`");
    read.holds(head_read_bytes == head, || {
        format!(
            "is {head_read_bytes}; the head is parts.head_bytes, or where those are 0 the embedding: {head}"
        )
    })?;
    at.key("attention_layer_bytes").count(attention_layer_bytes, 1, BYTES_MAX)?;
    let router = at.key("router_layer_bytes");
    router.bytes(router_layer_bytes)?;
    router.note("0 for one expert, up to 2^50 for several");
    router.holds((router_layer_bytes == 0) == (a.experts == 1), || {
        format!(
            "is {router_layer_bytes} for {} experts; one expert has no router, and several have",
            a.experts
        )
    })?;
    let fixed = at.key("fixed_bytes");
    let least = [embedding_bytes, head_bytes, attention_layer_bytes, router_layer_bytes].iter().sum();
    fixed.count(fixed_bytes, least, BYTES_MAX)?;
    fixed.note("embedding, head and a layer's attention and router, or more, up to 2^50");
    at.key("tokenizer_bytes").bytes(tokenizer_bytes)?;
    bundle_of(bundle, a, &at.key("bundle"))
}

/// A neuron's bundle, for all layers or for one.
fn bundle_of(bundle: BundleLayout, a: &Architecture, at: &At<'_>) -> Checked {
    let BundleLayout { gate_bytes, up_bytes, down_bytes, stride_bytes, slice_neurons, apart } = bundle;
    for (key, bytes) in [("gate_bytes", gate_bytes), ("down_bytes", down_bytes)] {
        at.key(key).count(bytes, 1, ROW_BYTES_MAX)?;
    }
    let up = at.key("up_bytes");
    up.count(up_bytes, 0, ROW_BYTES_MAX)?;
    up.note("0 where `architecture.activation` is `relu-squared`, else above, up to 2^28");
    up.holds((up_bytes > 0) == a.is_gated(), || match a.is_gated() {
        true => format!("is 0, and neurons of {} have gate, up and down", a.activation),
        false => format!("is {up_bytes}; neurons of {} have their up in place of a gate", a.activation),
    })?;
    let slice = at.key("slice_neurons");
    slice.note(
        "1, or for several experts and where down is not transposed a divisor of `architecture.neurons_per_expert`",
    );
    slice.holds(
        slice_neurons == 1
            || (a.experts > 1 || !a.down_transposed)
                && slice_neurons > 0
                && u64::from(a.neurons_per_expert).is_multiple_of(slice_neurons),
        || {
            format!(
                "is {slice_neurons}; each of {} experts has {} neurons, in slices of one size",
                a.experts, a.neurons_per_expert
            )
        },
    )?;
    let whole = !a.down_transposed && slice_neurons == u64::from(a.neurons_per_expert);
    at.key("apart").note("`true` where down is not transposed and slices are whole experts");
    at.key("apart").holds(!apart || whole, || {
        "is true, and slices are not whole experts with down as the file has it".to_owned()
    })?;
    let stride = BundleLayout::in_slices(gate_bytes, up_bytes, down_bytes, slice_neurons).stride_bytes;
    at.key("stride_bytes").note("the rows; of a page or more, on whole pages, unless they stand in slices");
    at.key("stride_bytes").holds(stride_bytes == stride, || {
        format!("is {stride_bytes}; rows of {gate_bytes}, {up_bytes} and {down_bytes} bytes have a stride of {stride}")
    })
}

/// Bundles by layer: every layer has its own or none has, and the model's bundle is their mean.
fn bundles(model: &Model, at: &At<'_>) -> Checked {
    let own: Vec<BundleLayout> = model.layers.iter().filter_map(|layer| layer.bundle).collect();
    let at = at.key("layers");
    let lacking = model.layers.iter().position(|layer| layer.bundle.is_none()).unwrap_or(0);
    at.item(lacking).key("bundle").holds(own.is_empty() || own.len() == model.layers.len(), || {
        "is missing, and other layers have one; give it in all layers or in none".to_owned()
    })?;
    let Some(mean) = BundleLayout::mean(&own) else { return Ok(()) };
    let slices = mean.slice_neurons;
    let other = own.iter().position(|bundle| bundle.slice_neurons != slices).unwrap_or(0);
    at.item(other)
        .key("bundle")
        .key("slice_neurons")
        .holds(own.iter().all(|bundle| bundle.slice_neurons == slices), || {
            format!("is {}, and the first layer's slices are of {slices}", own[other].slice_neurons)
        })?;
    let other = own.iter().position(|bundle| bundle.apart != mean.apart).unwrap_or(0);
    at.item(other).key("bundle").key("apart").holds(own[other].apart == mean.apart, || {
        format!("is {}, and the first layer's is {}", own[other].apart, mean.apart)
    })?;
    at.item(0).key("bundle").holds(mean == model.parts.bundle, || {
        format!("and those of the other layers are {mean:?} on average, which `parts.bundle` is not")
    })
}

fn container(container: &ContainerIdentity, model: &Model, at: &At<'_>) -> Checked {
    let ContainerIdentity { file, fingerprint, bytes } = container;
    at.key("file").file_name(file)?;
    at.key("fingerprint").plain(fingerprint)?;
    let of_layer = |layer| model.bundle(layer).layer_bytes(model.architecture.neurons());
    let neurons = (0..model.layers.len()).map(of_layer).fold(0, u64::saturating_add);
    at.key("bytes").count(*bytes, model.parts.fixed_bytes.saturating_add(neurons), BYTES_MAX)?;
    at.key("bytes").note("`parts.fixed_bytes` and the neurons of all layers, or more, up to 2^50");
    Ok(())
}

fn reuse(reuse: &ReuseAxes, at: &At<'_>) -> Checked {
    let ReuseAxes { cached_fraction, pinned_share_fraction, wide_gap_ranks } = reuse;
    if let Some(ranks) = wide_gap_ranks {
        let at = at.key("wide_gap_ranks");
        at.count(u64::from(*ranks), u64::from(GAP_RANKS) + 1, WIDE_GAP_RANKS_MAX)?;
    }
    for (key, axis) in
        [("cached_fraction", cached_fraction), ("pinned_share_fraction", pinned_share_fraction)]
    {
        let at = at.key(key);
        at.each(axis, |at, &value| at.fraction(value))?;
        let rising = axis.windows(2).all(|pair| pair[0] < pair[1]);
        let whole = axis.first() == Some(&0.0) && axis.last() == Some(&1.0);
        at.note("rises from 0 to 1");
        at.holds((2..=AXIS_MAX).contains(&axis.len()) && whole && rising, || {
            format!("is {axis:?}; 2 to {AXIS_MAX} entries that rise from 0 to 1 belong there")
        })?;
    }
    Ok(())
}

fn activity(activity: &LayerActivity, a: &Architecture, at: &At<'_>) -> Checked {
    let LayerActivity {
        active_true_fraction,
        active_gate_fraction,
        active_neurons_mean,
        active_neurons_p50,
        active_neurons_p90,
        active_neurons_p99,
        bundle,
    } = *activity;
    at.key("active_true_fraction").fraction(active_true_fraction)?;
    at.key("active_gate_fraction").fraction(active_gate_fraction)?;
    // every neuron of such a model is truly active
    let above = !a.always_fires() && active_true_fraction > active_gate_fraction * (1.0 + ROUNDING);
    at.key("active_true_fraction").holds(!above, || {
        format!("is {active_true_fraction}, more than the {active_gate_fraction} whose gate fires")
    })?;
    mean(active_neurons_mean, active_true_fraction, a, &at.key("active_neurons_mean"))?;
    at.key("active_neurons_mean").note("`active_true_fraction` of the routed neurons");
    let routed = a.neurons_routed() as f64;
    at.key("active_neurons_p50").number(active_neurons_p50, 0.0, active_neurons_p90.min(routed))?;
    at.key("active_neurons_p50").note("0 to `active_neurons_p90`");
    at.key("active_neurons_p90").number(active_neurons_p90, 0.0, active_neurons_p99.min(routed))?;
    at.key("active_neurons_p90").note("0 to `active_neurons_p99`");
    at.key("active_neurons_p99").number(active_neurons_p99, 0.0, routed)?;
    at.key("active_neurons_p99").note("0 to the routed neurons");
    bundle.map_or(Ok(()), |bundle| bundle_of(bundle, a, &at.key("bundle")))
}

/// A mean of neurons, against its share of the routed neurons.
fn mean(neurons: f64, fraction: f64, a: &Architecture, at: &At<'_>) -> Checked {
    let routed = a.neurons_routed() as f64;
    at.number(neurons, 0.0, routed)?;
    at.holds((neurons / routed - fraction).abs() <= MEAN * fraction + MEAN * MEAN, || {
        format!("is {neurons}, and {fraction} of {routed} routed neurons are {}", fraction * routed)
    })
}

/// A level's name: the name of its kind, or that name, a hyphen and more.
pub(crate) fn level_name(name: &str, kind: LevelKind, at: &At<'_>) -> Checked {
    at.plain(name)?;
    at.note("the name of its kind, or that name, a hyphen and more");
    let more = name.strip_prefix(kind.name());
    at.holds(more.is_some_and(|more| more.is_empty() || more.starts_with('-') && more.len() > 1), || {
        format!("is `{name}`; a level of kind `{0}` is called `{0}` or `{0}-...`", kind.name())
    })
}

fn levels(levels: &[Level], model: &Model, at: &At<'_>) -> Checked {
    at.note("one or more, each name once");
    at.holds(!levels.is_empty(), || "is missing; there is at least `dense`".to_owned())?;
    for (index, of_level) in levels.iter().enumerate() {
        let at = at.item(index);
        level(of_level, model, &at)?;
        let twice = levels[..index].iter().any(|other| other.name == of_level.name);
        at.key("name").holds(!twice, || format!("is `{}`, which stands there already", of_level.name))?;
    }
    Ok(())
}

fn level(level: &Level, model: &Model, at: &At<'_>) -> Checked {
    let Level {
        name,
        kind,
        lossless,
        resident_bytes,
        read_bytes_per_token,
        flops_per_token,
        perplexity,
        perplexity_change_fraction,
        perplexity_change_fraction_upper,
        perplexity_change_fraction_of_texts,
        recall_fraction,
        added_fraction,
        precision_fraction,
        look_ahead_recall_fraction,
        look_ahead_precision_fraction,
        missing_p50_over_mean,
        missing_p90_over_mean,
        missing_p99_over_mean,
        layers,
    } = level;
    at.key("kind").one_of_its_names(*kind);
    level_name(name, *kind, &at.key("name"))?;
    at.key("lossless").free(*lossless);
    at.key("lossless").note("`true` for `dense` and `exact-gate` alone");
    at.key("lossless").holds(!lossless || matches!(kind, LevelKind::Dense | LevelKind::ExactGate), || {
        format!("is true; a level of kind `{}` loses something", kind.name())
    })?;
    let resident = at.key("resident_bytes");
    resident.bytes(*resident_bytes)?;
    resident.note("0 for `dense`, above for others, up to 2^50");
    resident.holds((*resident_bytes == 0) == (*kind == LevelKind::Dense), || {
        format!("is {resident_bytes}; `dense` adds nothing, and every other level something")
    })?;
    at.key("read_bytes_per_token").count(*read_bytes_per_token, 0, *resident_bytes)?;
    at.key("read_bytes_per_token").note("0 to `resident_bytes`");
    at.key("flops_per_token").count(*flops_per_token, 0, FLOPS_MAX)?;
    at.key("perplexity").number(*perplexity, 1.0, PERPLEXITY_MAX)?;
    let change = at.key("perplexity_change_fraction");
    change.number(*perplexity_change_fraction, PERPLEXITY_CHANGE_MIN, LOSS_MAX)?;
    change.note("`perplexity / dense.perplexity - 1`");
    let found = perplexity / model.dense.perplexity - 1.0;
    change.holds((perplexity_change_fraction - found).abs() <= ROUNDING * (1.0 + found.abs()), || {
        format!(
            "is {perplexity_change_fraction}; a perplexity of {perplexity} beside the dense {} is {found}",
            model.dense.perplexity
        )
    })?;
    change.holds(!lossless || perplexity_change_fraction.abs() <= LOSSLESS_MAX, || {
        format!("is {perplexity_change_fraction} of a level that is called lossless")
    })?;
    let upper = *perplexity_change_fraction_upper;
    bound(*perplexity_change_fraction, upper, perplexity_change_fraction_of_texts, model, at)?;
    let lossless_upper = at.key("perplexity_change_fraction_upper");
    lossless_upper.holds(!lossless || upper.is_none_or(|upper| upper <= LOSSLESS_MAX), || {
        format!("is {upper:?} of a level that is called lossless")
    })?;
    at.key("recall_fraction").fraction(*recall_fraction)?;
    if let Some(fraction) = added_fraction {
        at.key("added_fraction").fraction(*fraction)?;
    }
    at.key("precision_fraction").fraction(*precision_fraction)?;
    for (key, share) in [
        ("look_ahead_recall_fraction", look_ahead_recall_fraction),
        ("look_ahead_precision_fraction", look_ahead_precision_fraction),
    ] {
        if let Some(fraction) = share {
            at.key(key).fraction(*fraction)?;
        }
    }
    let of_tokens = [
        ("missing_p50_over_mean", missing_p50_over_mean),
        ("missing_p90_over_mean", missing_p90_over_mean),
        ("missing_p99_over_mean", missing_p99_over_mean),
    ];
    quantiles(of_tokens, &model.reuse, at)?;
    let of_layers = at.key("layers");
    of_layers.length(layers.len(), model.architecture.layers as usize, "`architecture.layers` says")?;
    of_layers.each(layers, |at, of_layer| layer(of_layer, model, at))
}

/// The loss of keys and values in blocks, which always has a bound.
fn kv_loss(loss: &KvLoss, model: &Model, at: &At<'_>) -> Checked {
    let KvLoss {
        format,
        perplexity_change_fraction,
        perplexity_change_fraction_upper,
        perplexity_change_fraction_of_texts,
    } = loss;
    let lossy = KvFormat::ALL.into_iter().filter(|format| format.has_blocks());
    at.key("format").named(format, &lossy.map(KvFormat::name).collect::<Vec<_>>())?;
    let (change, upper) = (*perplexity_change_fraction, *perplexity_change_fraction_upper);
    at.key("perplexity_change_fraction").number(change, PERPLEXITY_CHANGE_MIN, LOSS_MAX)?;
    bound(change, Some(upper), perplexity_change_fraction_of_texts, model, at)
}

/// The bound of a loss and the loss by text, against the loss.
fn bound(change: f64, upper: Option<f64>, of_texts: &[f64], model: &Model, at: &At<'_>) -> Checked {
    let bound = at.key("perplexity_change_fraction_upper");
    if let Some(upper) = upper {
        bound.number(upper, PERPLEXITY_CHANGE_MIN, LOSS_MAX)?;
        bound.holds(upper >= change, || format!("is {upper}, and what was measured is {change} already"))?;
    }
    bound.note("`perplexity_change_fraction` or above; beside `perplexity_change_fraction_of_texts`");
    bound.holds(upper.is_some() != of_texts.is_empty(), || {
        "and `perplexity_change_fraction_of_texts` stand together; give both or neither".to_owned()
    })?;
    let texts = at.key("perplexity_change_fraction_of_texts");
    texts.each(of_texts, |at, &of_text| at.number(of_text, PERPLEXITY_CHANGE_MIN, LOSS_MAX))?;
    let first = model.levels.first().map_or(0, |level| level.perplexity_change_fraction_of_texts.len());
    texts.length(of_texts.len(), first, "the first level has")?;
    let least = of_texts.iter().copied().fold(f64::INFINITY, f64::min);
    let most = of_texts.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let off = ROUNDING * (1.0 + change.abs());
    texts.note("as many as other levels have, with `perplexity_change_fraction` between them");
    texts.holds(of_texts.is_empty() || (least - off..=most + off).contains(&change), || {
        format!("are {least} to {most}, and all of them together are said to be {change}")
    })
}

/// Missing neurons of the tokens at [`QUANTILES`] over the mean token's: all surfaces or none, each at least the one before.
fn quantiles(surfaces: [(&str, &Vec<Vec<f64>>); QUANTILES.len()], axes: &ReuseAxes, at: &At<'_>) -> Checked {
    let [(first, _), ..] = surfaces;
    let known = surfaces.iter().any(|(_, surface)| !surface.is_empty());
    let mut before: Option<&Vec<Vec<f64>>> = None;
    for ((key, surface), quantile) in surfaces.into_iter().zip(QUANTILES) {
        let at = at.key(key);
        at.holds(surface.is_empty() != known, || {
            format!("and `{first}` with the keys like it stand together; give all or none")
        })?;
        if known {
            plane(surface, axes, &at, |at, &value| at.number(value, 0.0, over_mean_max(quantile)))?;
        }
        let falls = |(share, row): (usize, &Vec<f64>)| {
            let less = |(cached, &value): (usize, &f64)| before.is_some_and(|of| value < of[share][cached]);
            row.iter().enumerate().position(less).map(|cached| (share, cached))
        };
        let fall = surface.iter().enumerate().find_map(falls);
        let (share, cached) = fall.unwrap_or_default();
        at.item(share).item(cached).holds(fall.is_none(), || {
            format!("is {}, less than what a smaller part of the tokens misses", surface[share][cached])
        })?;
        before = Some(surface);
    }
    Ok(())
}

fn layer(layer: &LevelLayer, model: &Model, at: &At<'_>) -> Checked {
    let LevelLayer {
        active_predicted_fraction,
        beta_fraction,
        predicted_neurons_mean,
        predicted_neurons_p99,
        always_on_neurons,
        miss_fraction,
        clock_miss_fraction,
        frequency_miss_fraction,
        runs_fraction,
        runs_over_gaps_fraction,
        runs_over_wide_gaps_fraction,
    } = layer;
    let a = &model.architecture;
    at.key("active_predicted_fraction").fraction(*active_predicted_fraction)?;
    at.key("beta_fraction").fraction(*beta_fraction)?;
    mean(*predicted_neurons_mean, *active_predicted_fraction, a, &at.key("predicted_neurons_mean"))?;
    at.key("predicted_neurons_mean").note("`active_predicted_fraction` of the routed neurons");
    at.key("predicted_neurons_p99").number(*predicted_neurons_p99, 0.0, a.neurons_routed() as f64)?;
    at.key("predicted_neurons_p99").note("0 to the routed neurons");
    at.key("always_on_neurons").count(*always_on_neurons, 0, a.neurons())?;
    at.key("always_on_neurons").note("0 to the neurons of a layer");
    for (key, values, optional, falls) in [
        ("miss_fraction", miss_fraction, false, true),
        ("clock_miss_fraction", clock_miss_fraction, true, true),
        ("frequency_miss_fraction", frequency_miss_fraction, true, true),
        ("runs_fraction", runs_fraction, true, false),
        ("runs_over_gaps_fraction", runs_over_gaps_fraction, true, false),
        ("runs_over_wide_gaps_fraction", runs_over_wide_gaps_fraction, true, false),
    ] {
        if optional && values.is_empty() {
            continue;
        }
        surface(values, falls, &model.reuse, &at.key(key))?;
    }
    Ok(())
}

/// A surface of misses over the axes in `[reuse]`, falling with the cache size.
fn surface(surface: &[Vec<f64>], falls: bool, axes: &ReuseAxes, at: &At<'_>) -> Checked {
    plane(surface, axes, at, |at, &value| at.fraction(value))?;
    at.each(surface, |at, row| {
        let rise = row.windows(2).position(|pair| falls && pair[1] > pair[0] + RISE_MAX);
        let index = rise.unwrap_or(0);
        at.item(index + 1).holds(rise.is_none(), || {
            format!("is {}, after {}: less is missing where more is cached", row[index + 1], row[index])
        })
    })
}

/// A value for each point of the axes in `[reuse]`.
fn plane(
    surface: &[Vec<f64>],
    axes: &ReuseAxes,
    at: &At<'_>,
    value: impl Fn(&At<'_>, &f64) -> Checked,
) -> Checked {
    at.length(surface.len(), axes.pinned_share_fraction.len(), "`reuse.pinned_share_fraction` has")?;
    at.each(surface, |at, row| {
        at.each(row, &value)?;
        at.length(row.len(), axes.cached_fraction.len(), "`reuse.cached_fraction` has")
    })
}
