//! Names of the hub's models on the command line.

use std::fmt;
use std::str::FromStr;

/// The most characters of an owner or a repository, by the hub's own rule.
const NAME_MAX: usize = 96;

/// A repository of the hub, and which of its models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Who has the repository.
    pub owner: String,
    /// The repository.
    pub repository: String,
    /// The requested quantisation, or a file's path in the repository.
    pub quantisation: Option<String>,
}

/// A text that names no model of the hub.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` names no model: write hf:OWNER/REPO, or hf:OWNER/REPO:QUANT for one of its GGUF files, for example \
     hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"
)]
pub struct NameError {
    text: String,
}

impl Name {
    /// Beginning of the name of a hub's model.
    pub const PREFIX: &str = "hf:";
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let read = || {
            let name = text.strip_prefix(Self::PREFIX)?;
            let (repository, quantisation) = match name.split_once(':') {
                Some((name, quantisation)) => {
                    (name, Some(Some(quantisation).filter(|it| !it.is_empty())?.to_owned()))
                }
                None => (name, None),
            };
            let (owner, repository) = repository.split_once('/')?;
            let [owner, repository] = [owner, repository].map(|it| is_name(it).then(|| it.to_owned()));
            Some(Self { owner: owner?, repository: repository?, quantisation })
        };
        read().ok_or_else(|| NameError { text: text.to_owned() })
    }
}

/// Whether the hub could have given this name to an owner or a repository. Such a name is safe in a path and in an address.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty()
        && text.len() <= NAME_MAX
        && text.chars().all(plain)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
        && !text.contains("--")
        && !text.contains("..")
}

/// The repository: `OWNER/REPO`.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repository)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_with_and_without_a_quantisation() {
        let name: Name = "hf:Qwen/Qwen3-0.6B_x-GGUF:Q4_K_M".parse().unwrap();
        assert_eq!(name.to_string(), "Qwen/Qwen3-0.6B_x-GGUF");
        assert_eq!(name.quantisation.as_deref(), Some("Q4_K_M"));
        let name: Name = "hf:a/b:folder/file.gguf".parse().unwrap();
        assert_eq!(name.quantisation.as_deref(), Some("folder/file.gguf"));
        assert_eq!("hf:a/b".parse::<Name>().unwrap().quantisation, None);
    }

    #[test]
    fn what_is_no_name_is_refused_with_an_example() {
        for text in [
            "a/b",
            "hf:",
            "hf:gpt2",
            "hf:a/",
            "hf:/b",
            "hf:a/b/c",
            "hf:a/b:",
            "hf:../b",
            "hf:a/..",
            "hf:a/b c",
            "hf:a/b--c",
        ] {
            let error = text.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("hf:OWNER/REPO:QUANT"), "{error}");
        }
    }
}
