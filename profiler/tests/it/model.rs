//! The model half on small synthetic models: what is measured agrees with itself, and bad input is refused.

use std::path::Path;

use flashplan::internals::container::{
    Container, Directory, bundle_checksums, gate_checksum, up_down_checksum,
};
use flashplan::internals::model::gguf::Gguf;
use flashplan::internals::model::source::{Down, SourceModel};
use flashplan::internals::reference::{Observer, Reference, Selector};
use kernels::best;
use plans::model::{LevelKind, Model};
use plans::{KvFormat, Policy};
use profiler::Context;
use profiler::model::{ModelOptions, Profile, Summary, Weights, profile, taken};
use tempfile::TempDir;

use crate::tiny;

/// A folder with a model and a text, and where to write.
struct Place {
    folder: TempDir,
    context: Context,
    options: ModelOptions,
}

impl Place {
    /// A quick profile.
    fn new(experts: u32, format: tiny::Format) -> Self {
        Self::with(experts, format, true)
    }

    fn with(experts: u32, format: tiny::Format, quick: bool) -> Self {
        let folder = TempDir::new().unwrap();
        let (model, text) = (folder.path().join("tiny.gguf"), folder.path().join("text.txt"));
        std::fs::write(&model, tiny::model(experts, format)).unwrap();
        std::fs::write(&text, tiny::text()).unwrap();
        let out = folder.path().join("out");
        std::fs::create_dir(&out).unwrap();
        Self {
            context: Context::new(out.clone(), out, quick),
            options: ModelOptions {
                model,
                text: Some(text),
                routes: None,
                name: None,
                down: None,
                gate_levels: false,
                activation: None,
                weights: None,
                consume: false,
                replace: false,
                instant: false,
            },
            folder,
        }
    }

    fn profile(&self) -> anyhow::Result<Summary> {
        profile(&self.context, &self.options)
    }

    fn model(&self) -> Model {
        plans::file::read::<Model>(&self.context.out.join("model.toml")).unwrap().value
    }

    fn message(&self) -> String {
        let message = self.profile().expect_err("refused").to_string();
        message.replace(&self.folder.path().display().to_string(), "FOLDER")
    }

    fn written(&self) -> Vec<String> {
        let files = self.context.out.read_dir().unwrap();
        let mut names: Vec<String> =
            files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// Everything in a profile that must agree with something else.
fn check(place: &Place, summary: &Summary) {
    let model = place.model();
    let container = Container::open(&summary.container).unwrap();
    assert_eq!(model.container.fingerprint, container.fingerprint);
    assert_eq!(model.container.bytes, std::fs::metadata(&summary.container).unwrap().len());
    assert_eq!(model.parts.fixed_bytes, container.directory.fixed.bytes);
    assert_eq!(model.parts.bundle, container.directory.bundle);
    assert_eq!(model.architecture, container.directory.architecture());
    assert_eq!(model.levels.len(), container.directory.levels.len());
    for (level, entry) in model.levels.iter().zip(&container.directory.levels) {
        assert_eq!((&level.name, level.kind), (&entry.name, entry.kind));
        assert_eq!(level.resident_bytes, container.level_resident_bytes(entry), "{}", level.name);
        assert!(level.read_bytes_per_token <= level.resident_bytes, "{}", level.name);
        let always_on: Vec<u32> = level.layers.iter().map(|layer| layer.always_on_neurons).collect();
        assert_eq!(always_on, entry.always_on, "{}", level.name);
        let (change, upper) = (level.perplexity_change_fraction, level.perplexity_change_fraction_upper);
        assert!(upper.is_some_and(|upper| upper >= change), "{}: {change} {upper:?}", level.name);
        assert_eq!(level.perplexity_change_fraction_of_texts, [change], "one text: {}", level.name);
        if level.lossless {
            assert!(level.perplexity_change_fraction.abs() < 1e-6, "{}: {}", level.name, level.perplexity);
            assert_eq!((level.recall_fraction, level.added_fraction), (1.0, Some(1.0)), "{}", level.name);
        }
        // where everything is requested, nothing is guessed
        let guesses = level.kind != LevelKind::Dense || model.architecture.experts > 1;
        for share in [level.look_ahead_recall_fraction, level.look_ahead_precision_fraction] {
            assert_eq!(share.is_some(), guesses, "{}", level.name);
            assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "{}: {share:?}", level.name);
        }
        let [p50, p90, p99] = level.missing_over_mean().expect("measured");
        if level.kind == LevelKind::Dense {
            // without a cache every token misses the same: all that it requests
            assert_eq!([p50, p90, p99].map(|surface| surface[0][0]), [1.0; 3], "{}", level.name);
        }
        let policies: Vec<Policy> = level.policies().collect();
        let measured = if level.kind == LevelKind::Dense { 1 } else { 3 };
        assert_eq!(policies, Policy::ALL[..measured], "{}", level.name);
        for (layer, policy) in level.layers.iter().flat_map(|layer| policies.iter().map(move |&p| (layer, p)))
        {
            // slots that take turns may miss a little more when there are more of them; pinned neurons never do
            let surface = layer.misses(policy).expect("measured");
            let falls =
                |row: &Vec<f64>, rise| row.is_sorted_by(|a, b| a + rise >= *b) && row.last() == Some(&0.0);
            assert!(surface.iter().all(|row| falls(row, 0.05)), "{} {policy}: {surface:?}", level.name);
            assert!(
                surface.last().is_some_and(|row| falls(row, 0.0)),
                "{} {policy}: {surface:?}",
                level.name
            );
        }
    }
    let blocks = [KvFormat::Q8_0, KvFormat::Q4_0];
    let measured = blocks.iter().filter(|format| format.holds(model.architecture.head_width.into()));
    let expected: Vec<&str> = measured.map(|format| format.name()).collect();
    assert_eq!(model.kv_formats.iter().map(|loss| &*loss.format).collect::<Vec<_>>(), expected);
    for loss in &model.kv_formats {
        let (change, upper) = (loss.perplexity_change_fraction, loss.perplexity_change_fraction_upper);
        assert!(change != 0.0 && change.abs() < 0.5 && upper > change, "{loss:?}");
        assert_eq!(loss.perplexity_change_fraction_of_texts, [change], "one text: {loss:?}");
    }
    let dense = &model.levels[0];
    assert_eq!(dense.kind, LevelKind::Dense);
    if dense.lossless {
        assert_eq!(dense.perplexity, model.dense.perplexity);
    }
    for (layer, activity) in dense.layers.iter().zip(&model.layers) {
        assert_eq!(layer.beta_fraction, activity.active_gate_fraction);
    }
    let requested = |name: &str| -> f64 {
        model.level(name).unwrap().layers.iter().map(|layer| layer.active_predicted_fraction).sum()
    };
    let recall = |name: &str| model.level(name).unwrap().recall_fraction;
    let added = |name: &str| model.level(name).unwrap().added_fraction.unwrap();
    for pair in
        ["low-rank-90", "low-rank-93", "low-rank-95", "low-rank-97", "low-rank-98", "low-rank-99"].windows(2)
    {
        assert!(requested(pair[0]) <= requested(pair[1]) && recall(pair[0]) <= recall(pair[1]), "{pair:?}");
    }
    let least = if model.provenance.quick { 0.8 } else { 0.95 };
    assert!(added("low-rank-99") > least, "{}", added("low-rank-99"));
    // what adds little may be left out, though it fires
    assert!(recall("low-rank-99") > 0.8, "{}", recall("low-rank-99"));
    let lines = |name: &str| std::fs::read_to_string(place.context.out.join(name)).unwrap().lines().count();
    let a = &model.architecture;
    assert_eq!(lines("neurons.csv") as u64, 1 + u64::from(a.layers) * a.neurons());
    let points = model.reuse.cached_fraction.len() * model.reuse.pinned_share_fraction.len();
    let surfaces: usize = model.levels.iter().map(|level| level.policies().count()).sum();
    assert_eq!(lines("reuse.csv"), 1 + surfaces * model.layers.len() * points);
    assert_eq!(place.written(), ["model.toml", "neurons.csv", "reuse.csv", "tiny.bundle"]);
}

/// Every bundle against its rows in the source and its checksum in the tables.
fn check_bundles(place: &Place, summary: &Summary) {
    let source = SourceModel::open(&place.options.model).unwrap();
    let container = Container::open(&summary.container).unwrap();
    let file = container.files(false).unwrap();
    let bytes = std::fs::read(&summary.container).unwrap();
    let d = &container.directory;
    let mut tables = vec![0; d.tables.bytes as usize];
    container.read_section(&file, &d.tables, "tables", &mut tables).unwrap();
    let number = |at: usize| u32::from_le_bytes(tables[4 * at..][..4].try_into().unwrap());
    let neurons = container.neurons();
    for layer in 0..d.config.layers() {
        for position in 0..neurons {
            let index = number(3 * layer * neurons + position) as usize;
            let (expert, neuron) = (index / d.config.ffn_width(), index % d.config.ffn_width());
            if !d.down_transposed {
                let sums = (3 * layer + 1) * neurons + 2 * position;
                let sums = [number(sums), number(sums + 1)];
                check_share(
                    &source,
                    &bytes[d.layer_offsets[layer] as usize..],
                    d,
                    layer,
                    position,
                    index,
                    sums,
                );
                continue;
            }
            let at = d.layer_offsets[layer] as usize + position * d.bundle.stride_bytes as usize;
            let bundle = &bytes[at..][..d.bundle.bundle_bytes() as usize];
            let (gate, rest) = bundle.split_at(d.bundle.gate_bytes as usize);
            assert_eq!(gate, source.ffn_gate(layer, expert).row(neuron).bytes);
            assert_eq!(&rest[..d.bundle.up_bytes as usize], source.ffn_up(layer, expert).row(neuron).bytes);
            let at = (3 * layer + 1) * neurons + 2 * position;
            let checksums = [number(at), number(at + 1)];
            assert_eq!(checksums, bundle_checksums(layer, position, bundle, gate.len()));
        }
    }
}

/// A neuron whose slice holds a piece of down: its rows, its share of the piece, and what of the piece begins its slice.
fn check_share(
    source: &SourceModel<'_>,
    bytes: &[u8],
    d: &Directory,
    layer: usize,
    position: usize,
    index: usize,
    checksums: [u32; 2],
) {
    let (bundle, slice) = (d.stored(layer).bundle, d.bundle.slice_neurons as usize);
    let (expert, neuron) = (index / d.config.ffn_width(), index % d.config.ffn_width());
    let [gate, up, down] =
        [bundle.gate_bytes, bundle.up_bytes, bundle.down_bytes].map(|bytes| bytes as usize);
    let bytes = &bytes[position / slice * slice * (gate + up + down)..];
    let (inputs, shares) = bytes.split_at(slice * (gate + up));
    let inputs = &inputs[position % slice * (gate + up)..][..gate + up];
    assert_eq!(&inputs[..gate], source.ffn_gate(layer, expert).row(neuron).bytes);
    assert_eq!(&inputs[gate..], source.ffn_up(layer, expert).row(neuron).bytes);
    let share = &shares[position % slice * down..][..down];
    let found = [gate_checksum(layer, position, inputs), up_down_checksum(layer, position, share)];
    assert_eq!(checksums, found);
    let Down::Columns(w) = source.ffn_down(layer, expert) else { panic!("the file has columns") };
    let first = w.format.row_bytes(neuron / slice * slice);
    let row = w.format.row_bytes(slice);
    for (at, piece) in shares.chunks_exact(row).take(w.rows).enumerate() {
        assert_eq!(piece, &w.row(at).bytes[first..first + row], "layer {layer}, row {at} of down");
    }
}

#[test]
fn down_of_a_model_whose_neurons_all_fire_stays_as_it_is_and_loses_nothing() {
    let q4km = (tiny::Format::Q4KM, ["Q4_K", "Q6_K"]);
    let [q8_0, f16] =
        [(tiny::Format::Q8_0, "Q8_0"), (tiny::Format::F16, "F16")].map(|(f, name)| (f, [name; 2]));
    for (experts, (format, of_source)) in [(1, q4km), (4, q8_0), (1, f16), (4, f16)] {
        let mut place = Place::new(experts, format);
        place.options.weights = Some(Weights::Container);
        std::fs::write(&place.options.model, tiny::model_with(experts, format, "silu")).unwrap();
        let summary = place.profile().unwrap();
        check_bundles(&place, &summary);
        let model = place.model();
        let (a, dense) = (&model.architecture, &model.levels[0]);
        assert!(!a.down_transposed && of_source.contains(&&*a.down_format), "{}", a.down_format);
        assert_eq!(model.is_uniform(), of_source[0] == of_source[1]);
        let says_so = |model: &Model| model.provenance.notes.iter().any(|note| note.contains("Down is"));
        assert!(!says_so(&model), "{:?}", model.provenance.notes);
        let [change, upper] =
            [dense.perplexity_change_fraction, dense.perplexity_change_fraction_upper.unwrap()];
        if of_source == ["F16"; 2] {
            // nothing is rounded
            assert!(dense.lossless && change == 0.0 && upper == 0.0, "{change} {upper}");
            continue;
        }
        // vectors are rounded to 8 bits. A router of random weights chooses other experts for that, which is not called lossless
        assert!(change.abs() < if experts == 1 { 0.01 } else { 0.05 }, "{change}");
        assert_eq!(dense.lossless, experts == 1, "{change} {upper}");
        // rows, if somebody asks for them
        place.options.down = Some(kernels::Format::Q4_0);
        place.profile().unwrap();
        let model = place.model();
        assert!(model.architecture.down_transposed && !model.levels[0].lossless && says_so(&model));
        assert!(model.levels[0].perplexity_change_fraction.abs() > change.abs(), "{:?}", model.levels[0]);
    }
}

#[test]
fn a_dense_model_is_profiled_and_twice_the_same() {
    let place = Place::with(1, tiny::Format::F16, false);
    let summary = place.profile().unwrap();
    check(&place, &summary);
    check_bundles(&place, &summary);
    let first = std::fs::read(&summary.container).unwrap();
    let model = place.model();
    place.profile().unwrap();
    assert_eq!(model, place.model());
    assert!(first == std::fs::read(&summary.container).unwrap(), "same inputs, same bytes");
}

#[test]
fn a_second_model_does_not_replace_the_first_without_a_word() {
    let mut place = Place::new(1, tiny::Format::F16);
    let summary = place.profile().unwrap();
    let (first, container) = (place.model(), std::fs::read(&summary.container).unwrap());
    let other = place.folder.path().join("other.gguf");
    std::fs::write(&other, tiny::model(2, tiny::Format::F16)).unwrap();
    let own = std::mem::replace(&mut place.options.model, other);
    let files = "FOLDER/out/model.toml (of the model `tiny`)";
    let remedy = "name another folder with --out and --storage, or replace them with --replace";
    assert_eq!(place.message(), format!("this profile would replace {files}: {remedy}"));
    // a container of the same name, too
    place.options.name = Some("tiny".to_owned());
    let files = format!("{files} and FOLDER/out/tiny.bundle (of the model `tiny`)");
    assert_eq!(place.message(), format!("this profile would replace {files}: {remedy}"));
    assert!(place.model() == first && std::fs::read(&summary.container).unwrap() == container);
    assert_eq!(place.written(), ["model.toml", "neurons.csv", "reuse.csv", "tiny.bundle"]);

    place.options.replace = true;
    let prepared = Profile::prepare(&place.context, &place.options).unwrap();
    assert!(prepared.remarks.contains(&format!(
        "--replace: {} will be replaced",
        files.replace("FOLDER", &place.folder.path().display().to_string())
    )));
    prepared.run().unwrap();
    assert_eq!(place.model().architecture.experts, 2);

    // what nobody can read is not the model's own, unless model.toml says so
    place.options.replace = false;
    std::fs::write(&summary.container, &container[..1000]).unwrap();
    place.profile().unwrap();
    std::fs::write(place.context.out.join("model.toml"), "schema = 0").unwrap();
    assert!(place.message().contains("model.toml (which this version cannot read)"));
    place.options.model = own;
    std::fs::remove_file(place.context.out.join("model.toml")).unwrap();
    std::fs::write(&summary.container, &container[..1000]).unwrap();
    assert!(place.message().contains("tiny.bundle (which this version cannot read)"));
    // and what is no container is nobody's of flashplan's
    std::fs::write(&summary.container, "a letter").unwrap();
    assert!(place.message().contains("the file that is there is not a container, and would be lost"));
}

#[test]
fn weights_and_scores_that_are_not_finite_are_refused_before_anything_is_measured_or_given_back() {
    let mut place = Place::new(1, tiny::Format::F16);
    place.options.consume = true;
    let whole = std::fs::read(&place.options.model).unwrap();
    let gguf = Gguf::parse(&whole).unwrap();
    let damaged = |tensor: &str, weight: usize, bytes: &[u8]| {
        let at = gguf.tensor(tensor).unwrap().offset as usize + weight * bytes.len();
        [&whole[..at], bytes, &whole[at + bytes.len()..]].concat()
    };
    let said = |tensor: &str, weight: usize| {
        format!(
            "FOLDER/tiny.gguf: weight {weight} of the tensor {tensor} is infinite or not a number: the file is damaged"
        )
    };
    let key = whole.windows(21).position(|window| window == b"tokenizer.ggml.scores").unwrap();
    // behind the key: the types of the value and of its entries, how many there are, and three of them
    let score = key + 21 + 4 + 4 + 8 + 3 * 4;
    let infinite = [&whole[..score], &f32::INFINITY.to_le_bytes(), &whole[score + 4..]].concat();
    for (file, says) in [
        (damaged("blk.0.attn_q.weight", 7, &0x7e00_u16.to_le_bytes()), said("blk.0.attn_q.weight", 7)),
        (damaged("blk.1.ffn_down.weight", 40, &0xfc00_u16.to_le_bytes()), said("blk.1.ffn_down.weight", 40)),
        (damaged("output_norm.weight", 1, &f32::NAN.to_le_bytes()), said("output_norm.weight", 1)),
        (infinite, "has score inf, which is not a number that can be compared".to_owned()),
    ] {
        std::fs::write(&place.options.model, &file).unwrap();
        let message = place.message();
        assert!(message.contains(&says), "{message}");
        assert!(std::fs::read(&place.options.model).unwrap() == file, "{says}");
        assert_eq!(place.written(), [""; 0], "{says}");
    }
}

#[test]
fn a_model_that_does_not_predict_text_is_refused_before_anything_is_measured_or_given_back() {
    let mut place = Place::new(1, tiny::Format::F16);
    place.options.consume = true;
    let whole = std::fs::read(&place.options.model).unwrap();
    let gguf = Gguf::parse(&whole).unwrap();
    let norm = gguf.tensor("output_norm.weight").unwrap();
    let range = norm.offset as usize..(norm.offset + norm.bytes) as usize;
    // weights that are finite, each, and logits of a hundred or of ten thousand
    for (scale, says) in [(10.0_f32, ", above 1e12. "), (1e3, ": its perplexity is infinite. ")] {
        let mut file = whole.clone();
        for weight in file[range.clone()].as_chunks_mut::<4>().0 {
            *weight = (f32::from_le_bytes(*weight) * scale).to_le_bytes();
        }
        std::fs::write(&place.options.model, &file).unwrap();
        let message = place.message();
        let begins = "FOLDER/tiny.gguf does not predict its held-out text: its perplexity is ";
        assert!(message.starts_with(begins) && message.contains(says), "{message}");
        assert!(message.ends_with("convert or download it again"), "{message}");
        assert!(std::fs::read(&place.options.model).unwrap() == file, "it was given back");
        assert_eq!(place.written(), [""; 0], "something was measured");
    }
}

#[test]
fn a_model_with_other_names_is_never_consumed() {
    let mut place = Place::new(1, tiny::Format::F16);
    place.options.consume = true;
    let at = |name: &str| place.folder.path().join(name);
    let linked = at("linked.gguf");
    std::fs::hard_link(at("tiny.gguf"), &linked).unwrap();
    let whole = std::fs::read(&linked).unwrap();
    let message = place.message();
    assert!(message.starts_with("FOLDER/tiny.gguf has 2 names (hard links)"), "{message}");
    assert!(message.ends_with("leave --consume-model away"), "{message}");
    assert!(std::fs::read(&linked).unwrap() == whole, "it has holes");

    // the second file of two is elsewhere, or has a second name there
    let names = [1, 2].map(|number| at(&format!("split-{number:05}-of-00002.gguf")));
    let [first, second] = tiny::split_model_with(1, tiny::Format::F16, "drelu");
    let elsewhere = at("elsewhere.gguf");
    std::fs::write(&names[0], first).unwrap();
    std::fs::write(&elsewhere, &second).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &names[1]).unwrap();
    place.options.model = names[0].clone();
    let message = place.message();
    assert!(message.starts_with("FOLDER/split-00002-of-00002.gguf is a link"), "{message}");
    std::fs::remove_file(&names[1]).unwrap();
    std::fs::hard_link(&elsewhere, &names[1]).unwrap();
    let message = place.message();
    assert!(message.starts_with("FOLDER/split-00002-of-00002.gguf has 2 names"), "{message}");
    assert!(std::fs::read(&elsewhere).unwrap() == second, "it has holes");
    assert_eq!(place.written(), [""; 0], "something was measured");

    std::fs::remove_file(&elsewhere).unwrap();
    place.profile().unwrap();
    assert!(names.iter().all(|name| !name.exists()), "the folder's own files are consumed");
}

#[test]
fn a_model_of_experts_is_profiled() {
    let place = Place::new(4, tiny::Format::F16);
    let summary = place.profile().unwrap();
    check(&place, &summary);
    check_bundles(&place, &summary);
}

#[test]
fn down_of_a_quantised_model_is_quantised_again_and_that_is_noted() {
    let place = Place::new(1, tiny::Format::Q8_0);
    let summary = place.profile().unwrap();
    check(&place, &summary);
    check_bundles(&place, &summary);
    let model = place.model();
    assert_eq!((&*model.architecture.weight_format, &*model.architecture.down_format), ("Q8_0", "Q8_0"));
}

#[test]
fn a_model_of_two_formats_keeps_the_finer_for_all_down_rows() {
    let mut place = Place::new(1, tiny::Format::Q4KM);
    let summary = place.profile().unwrap();
    check(&place, &summary);
    check_bundles(&place, &summary);
    let formats = |place: &Place| {
        let a = place.model().architecture;
        (a.weight_format, a.down_format)
    };
    assert_eq!(formats(&place), ("Q4_K".to_owned(), "Q6_K".to_owned()));
    let fine = place.model().levels[0].perplexity_change_fraction;
    place.options.down = Some(kernels::Format::Q4K);
    place.profile().unwrap();
    assert_eq!(formats(&place), ("Q4_K".to_owned(), "Q4_K".to_owned()));
    let coarse = place.model().levels[0].perplexity_change_fraction;
    assert!(fine.abs() < 0.01 && coarse.abs() < 0.03, "{fine} {coarse}");
}

#[test]
fn a_silu_model_has_the_dense_level_only() {
    let place = Place::new(1, tiny::Format::F16);
    std::fs::write(&place.options.model, tiny::model_with(1, tiny::Format::F16, "silu")).unwrap();
    place.profile().unwrap();
    let model = place.model();
    assert_eq!(model.levels.iter().map(|level| &*level.name).collect::<Vec<_>>(), ["dense"]);
    assert!(model.provenance.notes.iter().any(|note| note.contains("SiLU")), "{:?}", model.provenance.notes);
}

#[test]
fn neurons_whose_gate_is_small_are_left_out_where_that_is_asked_for() {
    for experts in [1, 4] {
        let mut place = Place::new(experts, tiny::Format::F16);
        std::fs::write(&place.options.model, tiny::model_with(experts, tiny::Format::F16, "silu")).unwrap();
        place.options.gate_levels = true;
        let summary = place.profile().unwrap();
        check_bundles(&place, &summary);
        let (model, container) = (place.model(), Container::open(&summary.container).unwrap());
        let names: Vec<&str> = model.levels.iter().map(|level| &*level.name).collect();
        let cut: Vec<String> =
            [3, 5, 8, 12, 18, 27, 40, 60].map(|error| format!("gate-threshold-{error}")).to_vec();
        assert_eq!(names[0], "dense");
        assert_eq!(names[1..], cut);
        let requested: Vec<f64> = (model.levels[1..].iter())
            .map(|level| {
                let mean = |of: fn(&plans::model::LevelLayer) -> f64| {
                    level.layers.iter().map(of).sum::<f64>() / level.layers.len() as f64
                };
                mean(|layer| layer.active_predicted_fraction)
            })
            .collect();
        assert!(requested.is_sorted_by(|a, b| a >= b), "{requested:?}");
        assert!(requested[0] < 1.0 && requested[5] < 0.95 * requested[0], "{requested:?}");
        for (level, entry) in model.levels.iter().zip(&container.directory.levels).skip(1) {
            assert_eq!((level.kind, level.lossless), (LevelKind::GateThreshold, false));
            assert_eq!(level.resident_bytes, container.level_resident_bytes(entry), "{}", level.name);
            assert!(level.read_bytes_per_token <= level.resident_bytes, "{}", level.name);
            assert!(level.perplexity_change_fraction_upper.is_some(), "{}", level.name);
            assert_eq!(level.policies().count(), 3, "{}", level.name);
        }
        let losses: Vec<f64> =
            model.levels.iter().map(|level| level.perplexity_change_fraction.abs()).collect();
        assert!(losses[0] < 1e-3 && losses[6] > losses[0], "{losses:?}");
    }
    // a model with exact zeros, and what else does not go with it
    let mut place = Place::new(1, tiny::Format::F16);
    place.options.gate_levels = true;
    assert!(place.message().contains("leave out --gate-levels"), "{}", place.message());
    std::fs::write(&place.options.model, tiny::model_with(1, tiny::Format::F16, "silu")).unwrap();
    place.options.weights = Some(Weights::OwnFile);
    assert!(place.message().contains("its levels read single neurons"), "{}", place.message());
}

#[test]
fn a_mixture_whose_neurons_all_fire_stands_expert_by_expert_and_its_slices_are_measured() {
    let mut place = Place::new(4, tiny::Format::F16);
    place.options.weights = Some(Weights::Container);
    std::fs::write(&place.options.model, tiny::model_with(4, tiny::Format::F16, "silu")).unwrap();
    let summary = place.profile().unwrap();
    check_bundles(&place, &summary);
    let model = place.model();
    assert_eq!(model.parts.bundle, Container::open(&summary.container).unwrap().directory.bundle);
    // an expert is smaller than a slice may be
    let slice = u64::from(model.architecture.neurons_per_expert);
    assert_eq!(model.parts.bundle.slice_neurons, slice);
    let csv = std::fs::read_to_string(place.context.out.join("neurons.csv")).unwrap();
    let sources: Vec<u64> =
        csv.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse().unwrap()).collect();
    // a line for each: every expert of each layer once
    for layer in sources.chunks(4) {
        let mut experts: Vec<u64> = layer.iter().map(|first| first / slice).collect();
        experts.sort_unstable();
        assert!(
            layer.iter().all(|first| first.is_multiple_of(slice)) && experts == [0, 1, 2, 3],
            "{layer:?}"
        );
    }
    assert_eq!(sources.len() as u64, 4 * u64::from(model.architecture.layers));
    let dense = &model.levels[0];
    assert!(dense.policies().eq(Policy::ALL) && model.levels.len() == 1);
    for layer in &dense.layers {
        assert_eq!(layer.predicted_neurons_p99, model.architecture.neurons_routed() as f64);
        for policy in Policy::ALL {
            let surface = layer.misses(policy).unwrap();
            // two of four experts a token: nothing cached misses all, half of them some, all of them nothing
            for row in surface {
                assert!(row[0] == 1.0 && row[row.len() - 1] == 0.0 && row[7] < 1.0, "{policy}: {row:?}");
            }
        }
    }
    let shares = [dense.look_ahead_recall_fraction, dense.look_ahead_precision_fraction];
    assert!(shares.iter().all(|share| share.is_some_and(|share| share > 0.0)), "{shares:?}");
}

/// A profile's misses equal a plain count over the recording, and its plan's hits equal the measured ones.
#[test]
fn misses_of_recorded_routes_take_the_place_of_the_models_own() {
    const SLOTS: usize = 2;
    let mut place = Place::new(4, tiny::Format::F16);
    std::fs::write(&place.options.model, tiny::model_with(4, tiny::Format::F16, "silu")).unwrap();
    // two tokens of a prompt; then each expert stays for some tokens beside the one that follows it
    let visited = |token: usize, layer: usize| [(token / 3 + layer) % 4, (token / 3 + layer + 1) % 4];
    let mut lines = "phase,token,layer,experts\n".to_owned();
    for (token, layer) in (0..42).flat_map(|token| (0..2).map(move |layer| (token, layer))) {
        let [a, b] = visited(token, layer);
        lines += &format!("{},{token},{layer},{a} {b}\n", u32::from(token >= 2));
    }
    let routes = place.folder.path().join("routes.csv");
    std::fs::write(&routes, &lines).unwrap();
    place.options.routes = Some(routes.clone());
    place.profile().unwrap();
    let model = place.model();
    assert_eq!(model.provenance.routes, Some(blake3::hash(lines.as_bytes()).to_hex().to_string()));

    // the ranks of experts
    let csv = std::fs::read_to_string(place.context.out.join("neurons.csv")).unwrap();
    let slice = model.architecture.neurons_per_expert as usize;
    let sources: Vec<usize> =
        csv.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse().unwrap()).collect();
    let level = &model.levels[0];
    let cached = model.reuse.cached_fraction.iter().position(|&cached| cached == 0.5).unwrap();
    let mut of_tokens = vec![0; 40];
    for (layer, of_layer) in level.layers.iter().enumerate() {
        let ranks: Vec<usize> = sources[layer * 4..][..4].iter().map(|first| first / slice).collect();
        // empty before the prompt, whose misses are not counted
        let mut recent: Vec<usize> = Vec::new();
        let mut missed = 0;
        for token in 0..42 {
            // as the engine asks: in ascending rank
            let asked: Vec<usize> =
                ranks.iter().copied().filter(|expert| visited(token, layer).contains(expert)).collect();
            let missing = asked.iter().filter(|expert| !recent.contains(expert)).count();
            let found: Vec<usize> = asked.iter().copied().filter(|expert| recent.contains(expert)).collect();
            let order = found.iter().chain(asked.iter().filter(|expert| !found.contains(expert)));
            for &expert in order {
                recent.retain(|&other| other != expert);
                recent.insert(0, expert);
            }
            recent.truncate(SLOTS);
            if token >= 2 {
                missed += missing;
                of_tokens[token - 2] += missing;
            }
        }
        let surface = of_layer.misses(Policy::Lru).unwrap();
        assert!(
            (surface[0][cached] - missed as f64 / 80.0).abs() < 1e-5,
            "layer {layer}: {surface:?} {missed}"
        );
    }
    assert!(of_tokens.iter().any(|&missed| missed != of_tokens[0]), "{of_tokens:?}");
    // nobody knows ahead what was recorded
    assert_eq!(
        (level.look_ahead_recall_fraction, level.look_ahead_precision_fraction),
        (Some(0.0), Some(0.0))
    );

    // experts do not say which neurons a sparse level requests
    std::fs::write(&place.options.model, tiny::model(4, tiny::Format::F16)).unwrap();
    place.options.replace = true;
    let said = place.profile().unwrap_err().to_string();
    assert!(
        said.contains("neurons of drelu come and go one by one") && said.contains("leave out --routes"),
        "{said}"
    );
    place.options.routes = Some(place.folder.path().join("none.csv"));
    let said = place.profile().unwrap_err().to_string();
    assert!(said.contains("cannot read") && said.contains("name a recording"), "{said}");
}

#[test]
fn predictors_that_come_with_a_model_are_measured_as_they_are() {
    let place = Place::new(1, tiny::Format::F16);
    std::fs::write(&place.options.model, tiny::model_with_knowing_predictors()).unwrap();
    let summary = place.profile().unwrap();
    let model = place.model();
    // they know the gates: whoever fires is requested, and who has a gate above zero without firing is, too
    let shipped = model.level("low-rank-shipped").unwrap();
    assert!(shipped.recall_fraction > 0.999, "{}", shipped.recall_fraction);
    let requested = shipped.layers.iter().map(|layer| layer.active_predicted_fraction).sum::<f64>() / 2.0;
    assert!((0.4..0.6).contains(&requested), "{requested}");
    let container = Container::open(&summary.container).unwrap();
    assert!(container.directory.sets[1].ranks.iter().flatten().all(|&rank| rank == 64), "the file's rank");
    assert!(
        !model.provenance.notes.iter().any(|note| note.contains("trained")),
        "{:?}",
        model.provenance.notes
    );
}

#[test]
fn predictors_that_tell_no_more_than_chance_are_replaced() {
    let place = Place::new(1, tiny::Format::F16);
    std::fs::write(&place.options.model, tiny::model_with_predictors(24)).unwrap();
    let summary = place.profile().unwrap();
    let model = place.model();
    // as they are in the file they request about half, and find about half
    let shipped = model.level("low-rank-shipped").unwrap();
    assert!(shipped.recall_fraction > 0.8, "{}", shipped.recall_fraction);
    assert!(model.level("low-rank-99").unwrap().recall_fraction > shipped.recall_fraction);
    let container = Container::open(&summary.container).unwrap();
    assert!(container.directory.sets[1].ranks.iter().flatten().all(|&rank| rank == 24), "the file's rank");
    let told = "The file's predictors of 2 of 2 networks tell no more than chance: others were trained in their place.";
    assert!(model.provenance.notes.iter().any(|note| note == told), "{:?}", model.provenance.notes);
}

#[test]
fn predictors_that_are_left_out_are_told() {
    let mut place = Place::new(1, tiny::Format::F16);
    let prepared = |place: &Place| Profile::prepare(&place.context, &place.options).unwrap();
    let told = |place: &Place| prepared(place).remarks.join("\n");
    assert_eq!(told(&place), "", "nothing to say");
    std::fs::write(&place.options.model, tiny::model_with_predictors(24)).unwrap();
    assert_eq!(told(&place), "", "they are measured");
    std::fs::write(&place.options.model, tiny::model_with_some_predictors(24, 1, "drelu")).unwrap();
    let said = told(&place);
    assert!(
        said.contains("`blk.1.fc1.weight` is missing: they are left out, and others are trained"),
        "{said}"
    );

    // a model with ReLU that is taken for SiLU, and the remedy
    std::fs::write(&place.options.model, tiny::model_with_some_predictors(24, 2, "silu")).unwrap();
    let said = told(&place);
    assert!(said.contains("`blk.0.fc1.weight`") && said.contains("--activation relu or drelu"), "{said}");
    place.options.activation = Some(kernels::Activation::Relu);
    assert_eq!(told(&place), "");
    let summary = place.profile().unwrap();
    let model = place.model();
    assert_eq!(model.architecture.activation, "relu");
    assert!(model.level("low-rank-shipped").is_some());
    let container = Container::open(&summary.container).unwrap();
    assert_eq!(container.directory.config.activation(), kernels::Activation::Relu);
}

#[test]
fn what_a_model_is_taken_to_be_is_told_with_the_reason() {
    let mut place = Place::new(1, tiny::Format::F16);
    let taken = |place: &Place| Profile::prepare(&place.context, &place.options).unwrap().taken;
    let [activation, words, template] = &taken(&place)[..] else { panic!("{:?}", taken(&place)) };
    assert_eq!(activation, "activation: drelu, by the key `flashplan.activation`");
    assert_eq!(words, "pre-tokenizer: none, as the tokenizer (key `tokenizer.ggml.model`) has it");
    assert_eq!(
        template,
        "chat template: none; the file does not say, and a conversation needs `run --template FILE`"
    );
    let assumed = |place: &Place| {
        let profile = Profile::prepare(&place.context, &place.options).unwrap();
        profile.assumed_activation().map(str::to_owned)
    };
    assert_eq!(assumed(&place), None);
    place.options.activation = Some(kernels::Activation::Relu);
    assert_eq!((&*taken(&place)[0], assumed(&place)), ("activation: relu, by --activation", None));
    // the same file without the key
    let mut bytes = std::fs::read(&place.options.model).unwrap();
    let (key, other) = (b"flashplan.activation", b"something.activation");
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    bytes[at..][..other.len()].copy_from_slice(other);
    std::fs::write(&place.options.model, bytes).unwrap();
    place.options.activation = None;
    let sentence = "activation: silu, as `llama` has it; the file does not say; --activation names another";
    assert_eq!(assumed(&place).as_deref(), Some(sentence));

    let golden = |name: &str| {
        let path = format!("{}/../fixtures/golden/architectures/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        let source = SourceModel::open(path).unwrap();
        let data = source.tokenizer_data().unwrap();
        taken::told(&source, &data, None)
    };
    let told = golden("qwen3moe");
    assert_eq!(
        told[..3],
        [
            "activation: silu, as `qwen3moe` has it; the file does not say; --activation names another",
            "router: 3 of 8 experts, weighed by a softmax over all, divided by their sum, as `qwen3moe` has it; the file does not say",
            "pre-tokenizer: `qwen2`, by the key `tokenizer.ggml.pre`",
        ]
    );
    let told = golden("deepseek2");
    assert_eq!(
        told[1],
        "router: 3 of 8 experts, weighed by the sigmoid of each, divided by their sum, by the key `deepseek2.expert_gating_func`"
    );
    let told = golden("nemotron_h_moe");
    assert_eq!(told[0], "activation: relu-squared, as `nemotron_h_moe` has it; the file does not say");
}

/// Selects every neuron, those with a positive gate, or none.
struct Which(fn(f32) -> bool);

impl Observer for Which {
    fn feed_forward(&mut self, _: usize, _: usize, _: &[f32], _: &[f32], _: &[f32]) {}
}

impl Selector for Which {
    fn select(&mut self, _: usize, _: usize, _: &[f32], gate: &[f32], selected: &mut [bool]) {
        for (selected, &gate) in selected.iter_mut().zip(gate) {
            *selected = self.0(gate);
        }
    }
}

#[test]
fn the_reference_leaves_out_neurons_that_are_not_selected_and_nothing_else() {
    for experts in [1, 4] {
        let place = Place::new(experts, tiny::Format::F16);
        let source = SourceModel::open(&place.options.model).unwrap();
        let logits = |which: Option<fn(f32) -> bool>| {
            let mut reference = Reference::new(&source, best());
            let step = |token| match which {
                None => reference.step(token, &mut ()),
                Some(which) => reference.step_selected(token, &mut Which(which)),
            };
            (5..20).flat_map(step).collect::<Vec<f32>>()
        };
        let dense = logits(None);
        assert_eq!(dense, logits(Some(|_| true)), "all neurons are the dense model");
        assert_eq!(dense, logits(Some(|gate| gate > 0.0)), "the exact gate loses nothing");
        assert_ne!(dense, logits(Some(|_| false)), "without neurons it is another model");
    }
}

#[test]
fn a_damaged_container_is_refused() {
    let place = Place::new(1, tiny::Format::F16);
    let summary = place.profile().unwrap();
    let bytes = std::fs::read(&summary.container).unwrap();
    let damaged = place.folder.path().join("damaged.bundle");
    let whole = Container::open(&summary.container).unwrap();
    let d = &whole.directory;

    for len in [0, 7, 79, 4096, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&damaged, &bytes[..len]).unwrap();
        let message = Container::open(&damaged).expect_err("too short").to_string();
        assert!(message.contains("cut short") || message.contains("does not begin"), "{len}: {message}");
    }

    let directory = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    for at in [0, 9, 13, 20, 30, 50, 75, directory + 1, directory + 500] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        std::fs::write(&damaged, &flipped).unwrap();
        Container::open(&damaged).expect_err("a flipped byte in header or directory");
    }

    let thresholds = d.levels.iter().filter_map(|level| level.thresholds.as_ref());
    let sections: Vec<_> = [&d.fixed, &d.tables]
        .into_iter()
        .chain(d.sets.iter().map(|set| &set.section))
        .chain(thresholds)
        .collect();
    assert_eq!(sections.len(), 11, "two, two sets, seven levels with thresholds");
    for section in sections {
        for at in [section.offset, section.offset + section.bytes / 2, section.offset + section.bytes - 1] {
            let mut flipped = bytes.clone();
            flipped[at as usize] ^= 0x10;
            std::fs::write(&damaged, &flipped).unwrap();
            let container = Container::open(&damaged).unwrap();
            let file = container.files(false).unwrap();
            let mut out = vec![0; section.bytes as usize];
            let error = container.read_section(&file, section, "part", &mut out).expect_err("flipped");
            assert!(error.to_string().contains("checksum of its part"), "{error}");
        }
    }

    let gate = d.bundle.gate_bytes as usize;
    let at = d.layer_offsets[1] as usize + 3 * d.bundle.stride_bytes as usize;
    let bundle = &bytes[at..][..d.bundle.bundle_bytes() as usize];
    let right = bundle_checksums(1, 3, bundle, gate);
    for (byte, damaged) in [(0, 0), (gate - 1, 0), (gate, 1), (bundle.len() - 1, 1)] {
        let mut flipped = bundle.to_vec();
        flipped[byte] ^= 1;
        let found = bundle_checksums(1, 3, &flipped, gate);
        assert_ne!(found[damaged], right[damaged], "byte {byte}");
        assert_eq!(found[1 - damaged], right[1 - damaged], "byte {byte}");
    }
    for elsewhere in [bundle_checksums(1, 4, bundle, gate), bundle_checksums(0, 3, bundle, gate)] {
        assert!(elsewhere.iter().zip(&right).all(|(a, b)| a != b), "from another position or layer");
    }
}

#[test]
fn a_folder_stands_for_its_only_model() {
    let mut place = Place::new(1, tiny::Format::F16);
    let file = place.options.model.clone();
    place.options.model = place.folder.path().to_owned();
    assert_eq!(place.profile().unwrap().name, "tiny");

    std::fs::copy(&file, file.with_file_name("another.gguf")).unwrap();
    assert_eq!(
        place.message(),
        "FOLDER holds 2 .gguf files; name one of them, for example FOLDER/another.gguf"
    );
    place.options.model = place.context.out.clone();
    assert_eq!(
        place.message(),
        "FOLDER/out is a folder without a .gguf file and without a config.json: name a GGUF file, or a folder as Hugging Face's \
         hub has them"
    );
}

#[test]
fn bad_input_is_refused_and_nothing_is_left() {
    let mut place = Place::new(1, tiny::Format::F16);
    let good = place.options.clone();
    place.options.text = Some(Path::new("/no/such/text").to_owned());
    assert!(
        place.message().starts_with("cannot read the text /no/such/text; give a UTF-8"),
        "{}",
        place.message()
    );

    let short = place.folder.path().join("short.txt");
    std::fs::write(&short, "two words").unwrap();
    place.options.text = Some(short);
    assert!(place.message().starts_with("the text is too short"), "{}", place.message());

    place.options = ModelOptions { name: Some("a/b".to_owned()), ..good.clone() };
    assert_eq!(place.message(), "the name `a/b` cannot be a file's; give another with --name");

    place.options = ModelOptions { model: good.text.clone().unwrap(), ..good.clone() };
    assert!(place.message().contains("FOLDER/text.txt"), "{}", place.message());

    place.options = good;
    place.context.stop_flag().store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(place.message().starts_with("stopped on request"), "{}", place.message());
    assert!(place.written().is_empty(), "{:?}", place.written());
}
