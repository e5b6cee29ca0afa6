//! Chooses the files of a requested model in a repository.

use std::collections::BTreeMap;

use plans::size::show;

use crate::error::HubError;
use crate::listing::File;
use crate::name::Name;

/// Kinds of models on the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One GGUF file, or the parts of one.
    Gguf,
    /// A folder with `config.json`, safetensors and a tokenizer.
    Folder,
}

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFiles {
    /// Kind of the model.
    pub kind: Kind,
    /// Files of the model; GGUF files in order.
    pub files: Vec<File>,
}

/// The files that a folder's model is read from, besides its weights.
const FOLDER: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// The file that maps tensors to the parts of the weights.
const INDEX: &str = "model.safetensors.index.json";

/// Chooses the GGUF files of the requested quantisation, or of the only one; without GGUF files, the folder.
///
/// # Errors
/// [`HubError::Choose`] with the list of models; [`HubError::Nothing`] without a model.
pub(crate) fn choose(files: Vec<File>, name: &Name) -> Result<ModelFiles, HubError> {
    let models = models(&files);
    if models.is_empty() {
        return folder(files, name);
    }
    let found: Vec<&Gguf<'_>> = match &name.quantisation {
        None => models.iter().collect(),
        Some(asked) => matching(&models, asked),
    };
    let [model] = found[..] else {
        let why = match (&name.quantisation, found.is_empty()) {
            (None, _) => format!("{name} has {} models", models.len()),
            (Some(asked), true) => format!("{name} has no {asked}"),
            (Some(asked), false) => format!("{name} has {} models in {asked}", found.len()),
        };
        let among = if found.is_empty() { models.iter().collect() } else { found };
        return Err(HubError::Choose { why, list: list(&among, name) });
    };
    if model.parts.len() as u64 != model.count {
        let (count, found, path) = (model.count, model.parts.len(), model.path());
        return Err(HubError::Nothing {
            name: name.to_string(),
            why: format!("{path} is one of {count} parts, and {found} of them are there"),
        });
    }
    Ok(ModelFiles { kind: Kind::Gguf, files: model.parts.iter().map(|&file| file.clone()).collect() })
}

/// All models in GGUF files, or the ones of the name's quantisation, smallest first: each with its name behind the colon.
/// Models that lack a part are left out.
///
/// # Errors
/// [`HubError::Nothing`] without GGUF files; [`HubError::Choose`] if none matches.
pub(crate) fn all(files: Vec<File>, name: &Name) -> Result<Vec<(Option<String>, ModelFiles)>, HubError> {
    let models = models(&files);
    let nothing = |why: &str| HubError::Nothing { name: name.to_string(), why: why.to_owned() };
    if models.is_empty() {
        return Err(nothing("it has no GGUF files"));
    }
    let mut found: Vec<&Gguf<'_>> = match &name.quantisation {
        None => models.iter().collect(),
        Some(asked) => matching(&models, asked),
    };
    if found.is_empty() {
        // with the list of those that are there
        return choose(files.clone(), name).map(|choice| vec![(name.quantisation.clone(), choice)]);
    }
    found.retain(|model| model.parts.len() as u64 == model.count);
    found.sort_by_key(|model| model.bytes());
    let all: Vec<&Gguf<'_>> = models.iter().collect();
    let of_model = |model: &&Gguf<'_>| {
        let files = model.parts.iter().map(|&file| file.clone()).collect();
        (Some(asked_by(model, &all)), ModelFiles { kind: Kind::Gguf, files })
    };
    Ok(found.iter().map(of_model).collect())
}

/// The text behind the colon that names one of these models: its quantisation, or its path where several have that.
fn asked_by(model: &Gguf<'_>, models: &[&Gguf<'_>]) -> String {
    match &model.quantisation {
        Some(it) if models.iter().filter(|other| other.quantisation.as_ref() == Some(it)).count() == 1 => {
            it.clone()
        }
        _ => model.path().to_owned(),
    }
}

/// A model in one or several GGUF files.
struct Gguf<'a> {
    /// Quantisation of the weights, in capitals, where the name says it.
    quantisation: Option<String>,
    /// Its parts, in order.
    parts: Vec<&'a File>,
    /// How many there should be.
    count: u64,
}

impl Gguf<'_> {
    /// The path of the first file.
    fn path(&self) -> &str {
        self.parts.first().map_or("", |file| &file.path)
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|file| file.bytes).sum()
    }
}

/// The models that GGUF files make. Projectors of pictures and importance matrices are none.
fn models(files: &[File]) -> Vec<Gguf<'_>> {
    let mut models = BTreeMap::<(&str, u64), Vec<(u64, &File)>>::new();
    for file in files {
        let Some(stem) = file.path.strip_suffix(".gguf") else { continue };
        let last = stem.rsplit('/').next().unwrap_or(stem).to_lowercase();
        if last.contains("mmproj") || last.contains("imatrix") {
            continue;
        }
        let (model, number, count) = part(stem).unwrap_or((stem, 1, 1));
        models.entry((model, count)).or_default().push((number, file));
    }
    let mut all = Vec::new();
    for ((stem, count), mut parts) in models {
        parts.sort_by_key(|&(number, _)| number);
        let parts = parts.into_iter().map(|(_, file)| file).collect();
        all.push(Gguf { quantisation: quantisation(stem), parts, count });
    }
    all
}

/// The model, number and count of a part: of `NAME-00002-of-00003`.
fn part(stem: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (model, number) = rest.rsplit_once('-')?;
    let whole = |digits: &str| digits.parse::<u64>().ok().filter(|_| digits.len() == 5);
    let (number, count) = (whole(number)?, whole(count)?);
    (1..=count).contains(&number).then_some((model, number, count))
}

/// Quantisation of a file's weights, by its name or by the name of its folder; in capitals, with `UD-` before dynamic
/// quantisations.
fn quantisation(stem: &str) -> Option<String> {
    stem.rsplit('/').find_map(|name| {
        let pieces: Vec<&str> = name.split(['-', '.']).collect();
        let found = pieces.iter().enumerate().rev().find_map(|(at, piece)| Some((at, format_in(piece)?)));
        let (at, format) = found?;
        let dynamic = at > 0 && pieces[at - 1].eq_ignore_ascii_case("UD");
        Some(if dynamic { format!("UD-{format}") } else { format })
    })
}

/// The format that a piece of a name is, or ends with after a `_`.
fn format_in(piece: &str) -> Option<String> {
    let piece = piece.to_uppercase();
    let starts = std::iter::once(0).chain(piece.match_indices('_').map(|(at, _)| at + 1));
    starts.map(|start| &piece[start..]).find(|it| is_format(it)).map(str::to_owned)
}

/// Whether this is a format as files are named by: `Q4_K_M`, `IQ2_XXS`, `TQ1_0`, `MXFP4`, `BF16`.
fn is_format(text: &str) -> bool {
    let numbered = ["IQ", "TQ", "Q"].iter().find_map(|start| text.strip_prefix(start));
    numbered.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || matches!(text, "BF16" | "F16" | "F32" | "FP16" | "FP32" | "MXFP4" | "MXFP4_MOE" | "NVFP4")
}

/// Models that match a request: by a file's path, by their quantisation, or by it without `UD-`.
fn matching<'a, 'f>(models: &'a [Gguf<'f>], asked: &str) -> Vec<&'a Gguf<'f>> {
    let all = |is: &dyn Fn(&Gguf<'_>) -> bool| models.iter().filter(|model| is(model)).collect::<Vec<_>>();
    let by_path = all(&|model| model.parts.iter().any(|file| file.path == asked));
    let asked = asked.to_uppercase();
    let exact = all(&|model| model.quantisation.as_deref() == Some(&asked));
    let dynamic =
        all(&|model| model.quantisation.as_deref().and_then(|it| it.strip_prefix("UD-")) == Some(&asked));
    [by_path, exact, dynamic].into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// Names of some models as a user would request them, the smallest first.
fn list(models: &[&Gguf<'_>], name: &Name) -> String {
    let mut models = models.to_vec();
    models.sort_by_key(|model| model.bytes());
    let lines = models
        .iter()
        .map(|model| format!("\n  hf:{name}:{}  {}", asked_by(model, &models), show(model.bytes())));
    lines.collect()
}

/// The files of a folder with safetensors.
fn folder(files: Vec<File>, name: &Name) -> Result<ModelFiles, HubError> {
    let nothing = |why: &str| HubError::Nothing { name: name.to_string(), why: why.to_owned() };
    let has = |path: &str| files.iter().any(|file| file.path == path);
    let whole = has("model.safetensors");
    let is_part = |path: &str| {
        path.strip_suffix(".safetensors").and_then(part).is_some_and(|(model, ..)| model == "model")
    };
    if !has("config.json") || !(whole || has(INDEX)) {
        return Err(nothing("it has neither GGUF files nor config.json with model.safetensors"));
    }
    if let Some(asked) = &name.quantisation {
        return Err(nothing(&format!(
            "it has no GGUF files and so no {asked}: leave it out, and have its weights quantised with --quantize"
        )));
    }
    let wanted = |path: &str| {
        FOLDER.contains(&path)
            || if whole { path == "model.safetensors" } else { path == INDEX || is_part(path) }
    };
    let files: Vec<File> = files.iter().filter(|file| wanted(&file.path)).cloned().collect();
    Ok(ModelFiles { kind: Kind::Folder, files })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;

    fn chosen(paths: &[&str], asked: &str) -> Result<Vec<String>, String> {
        let file = |(bytes, &path): (u64, &&str)| File {
            path: path.to_owned(),
            bytes: bytes << 20,
            checksum: Checksum::Git("0".repeat(40)),
        };
        let files = (1..).zip(paths).map(file).collect();
        match choose(files, &format!("hf:a/b{asked}").parse().unwrap()) {
            Ok(choice) => Ok(choice.files.into_iter().map(|file| file.path).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn quantisations_are_read_from_names_as_people_give_them() {
        for (stem, format) in [
            ("Qwen3-4B-Q4_K_M", "Q4_K_M"),
            ("qwen2-0_5b-instruct-q4_k_m", "Q4_K_M"),
            ("llama-2-7b.Q4_0", "Q4_0"),
            ("tinyllama_iq2_xxs", "IQ2_XXS"),
            ("Qwen3-30B-A3B-UD-Q4_K_XL", "UD-Q4_K_XL"),
            ("gpt-oss-20b-mxfp4", "MXFP4"),
            ("BF16/model", "BF16"),
            ("gemma-3-4b-it-bf16", "BF16"),
            ("Q8_0/model-F16", "F16"),
        ] {
            assert_eq!(quantisation(stem).as_deref(), Some(format), "{stem}");
        }
        for stem in ["ggml-model", "Qwen3-4B", "quantised-0_5b", "it-q"] {
            assert_eq!(quantisation(stem), None, "{stem}");
        }
    }

    #[test]
    fn the_one_that_was_asked_for_or_the_only_one() {
        let several = [
            "README.md",
            "m-Q4_K_M.gguf",
            "m-Q8_0.gguf",
            "m-UD-Q4_K_XL.gguf",
            "mmproj-F16.gguf",
            "imatrix.gguf",
        ];
        assert_eq!(chosen(&several, ":q8_0").unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(chosen(&several, ":Q4_K_XL").unwrap(), ["m-UD-Q4_K_XL.gguf"]);
        assert_eq!(chosen(&several, ":m-Q4_K_M.gguf").unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&["m.gguf", "mmproj-m.gguf", "model.safetensors"], "").unwrap(), ["m.gguf"]);
    }

    #[test]
    fn where_it_is_not_clear_the_models_are_listed_by_size_as_they_are_asked_for() {
        let several = ["m-Q8_0.gguf", "m-Q4_0.gguf", "other-Q4_0.gguf"];
        let error = chosen(&several, "").unwrap_err();
        assert!(
            error.ends_with(
                "\n  hf:a/b:Q8_0  1.0 MiB\n  hf:a/b:m-Q4_0.gguf  2.0 MiB\n  hf:a/b:other-Q4_0.gguf  3.0 MiB"
            ) && error.starts_with("a/b has 3 models"),
            "{error}"
        );
        let error = chosen(&several, ":Q4_0").unwrap_err();
        assert!(error.starts_with("a/b has 2 models in Q4_0") && !error.contains("Q8_0"), "{error}");
        let error = chosen(&several, ":Q5_0").unwrap_err();
        assert!(error.starts_with("a/b has no Q5_0") && error.contains("hf:a/b:Q8_0"), "{error}");
    }

    #[test]
    fn all_parts_of_a_model_come_in_order_or_none() {
        let parts =
            ["Q4/m-Q4_0-00002-of-00002.gguf", "Q4/m-Q4_0-00001-of-00002.gguf", "m-Q8_0-00001-of-00002.gguf"];
        let in_order = ["Q4/m-Q4_0-00001-of-00002.gguf", "Q4/m-Q4_0-00002-of-00002.gguf"];
        assert_eq!(chosen(&parts, ":Q4_0").unwrap(), in_order);
        assert_eq!(chosen(&parts, ":Q4/m-Q4_0-00002-of-00002.gguf").unwrap(), in_order);
        let error = chosen(&parts, ":Q8_0").unwrap_err();
        assert!(error.contains("one of 2 parts, and 1 of them are there"), "{error}");
    }

    #[test]
    fn of_a_folder_come_the_weights_once_and_what_is_read_beside_them() {
        let folder =
            ["config.json", "tokenizer.json", "README.md", "consolidated.safetensors", "onnx/config.json"];
        let whole = [&folder[..], &["model.safetensors", INDEX, "model-00001-of-00001.safetensors"]].concat();
        assert_eq!(chosen(&whole, "").unwrap(), ["config.json", "tokenizer.json", "model.safetensors"]);
        let parts = [
            &folder[..],
            &[
                "model.safetensors.index.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            ],
        ]
        .concat();
        assert_eq!(chosen(&parts, "").unwrap()[2..], parts[5..]);
        let error = chosen(&parts, ":Q4_0").unwrap_err();
        assert!(error.contains("no Q4_0") && error.contains("--quantize"), "{error}");
        assert!(chosen(&folder, "").unwrap_err().contains("neither GGUF files nor config.json"));
    }
}
