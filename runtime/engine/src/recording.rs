//! A recording of a real model's routing, adapted to the model that is run.
//!
//! The file is a table with a header, columns separated by commas. It needs `phase` (0 for the prompt, 1 for
//! generated tokens), `step` or `token`, `layer`, and either `expert`, one a line, or `experts`. `experts`
//! are separated by spaces; a + after one means that the recorder had it in memory. `ahead`, beside
//! `experts`, has the layer's router's choice one layer early. Lines that start with # name the source. A
//! `route_trace` of `BigMoeOnEdge` is read unchanged.
//! read as it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::routes::{Routes, RoutesError, Routing};

/// Experts by token, in sequence order, and layer.
type Visits = BTreeMap<(bool, u32), BTreeMap<usize, Visited>>;

/// A token's experts in a layer, and the choice one layer early if recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Visited {
    experts: Vec<usize>,
    ahead: Option<Vec<usize>>,
}

/// Recorded routes, adapted to a model.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The experts of every token.
    pub routes: Routes,
    /// Number of the prompt's tokens; the others were generated.
    pub prompt: usize,
    /// Recorded experts of a token in a layer.
    pub recorded: usize,
    /// Experts of a token in a layer of the model.
    pub used: usize,
    /// BLAKE3 of the file.
    pub hash: String,
}

/// An error of a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}; name a recording", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file in another format.
    #[error("{} is no recording of routes: {problem}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The problem, and its place.
        problem: String,
    },
    /// A recording that ends too early.
    #[error("{} has no prompt, or nothing after it; name a longer recording", path.display())]
    Short {
        /// The file.
        path: PathBuf,
    },
    /// A model without experts.
    #[error("the model has no experts to route; leave out --routes")]
    NoExperts,
    /// A recording of a model of another shape.
    #[error(transparent)]
    Routes(#[from] RoutesError),
}

impl Recording {
    /// Reads a recording for a model of this `routing`.
    ///
    /// If it has fewer experts a token than the model uses, the layer's most used other experts are added. If
    /// it has more layers, only the first ones are used.
    ///
    /// # Errors
    /// If the file cannot be read, is no recording, or does not fit the model.
    pub fn read(path: &Path, routing: Option<Routing>) -> Result<Self, RecordingError> {
        let routing = routing.ok_or(RecordingError::NoExperts)?;
        let text = std::fs::read_to_string(path)
            .map_err(|source| RecordingError::Io { path: path.to_owned(), source })?;
        Self::of(&text, path, routing)
    }

    /// As [`Recording::read`], of the text of the file `path`, for a model of this shape.
    ///
    /// # Errors
    /// When it is no recording, or is none of such a model.
    pub fn parse(
        text: &str,
        path: &Path,
        layers: usize,
        experts: usize,
        experts_used: usize,
    ) -> Result<Self, RecordingError> {
        Self::of(text, path, Routing { layers, experts, experts_used })
    }

    fn of(text: &str, path: &Path, routing: Routing) -> Result<Self, RecordingError> {
        let path = || path.to_owned();
        let visits = parse(text).map_err(|problem| RecordingError::Form { path: path(), problem })?;
        let popular = popularity(&visits, routing);
        let prompt = visits.keys().filter(|(generated, _)| !generated).count();
        let recorded = visits
            .values()
            .flat_map(BTreeMap::values)
            .map(|visited| visited.experts.len())
            .max()
            .unwrap_or(0);
        let widened = |of: fn(&Visited) -> &[usize]| {
            let mut lists = Vec::with_capacity(visits.len() * routing.layers);
            for layers in visits.values() {
                for (layer, popular) in popular.iter().enumerate() {
                    let mut list = layers.get(&layer).map_or_else(Vec::new, |visited| of(visited).to_vec());
                    list.truncate(routing.experts_used);
                    let more = popular.iter().filter(|expert| !list.contains(expert)).copied();
                    let more: Vec<usize> = more.take(routing.experts_used - list.len()).collect();
                    list.extend(more);
                    lists.push(list);
                }
            }
            lists
        };
        let mut routes = Routes::new(routing, widened(|visited| &visited.experts))?;
        if visits.values().flat_map(BTreeMap::values).any(|visited| visited.ahead.is_some()) {
            routes = routes.known_ahead(widened(|visited| visited.ahead.as_deref().unwrap_or_default()))?;
        }
        if routes.tokens() < 2 || prompt == 0 || prompt == routes.tokens() {
            return Err(RecordingError::Short { path: path() });
        }
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok(Self { routes, prompt, recorded, used: routing.experts_used, hash })
    }

    /// A remark for users if the model uses more experts than were recorded.
    pub fn remark(&self) -> Option<String> {
        (self.recorded < self.used).then(|| {
            format!(
                "{} experts a token were recorded; the {} that the model uses are those and the most visited of the layer",
                self.recorded, self.used
            )
        })
    }
}

/// The experts of each layer, the most used first.
fn popularity(visits: &Visits, routing: Routing) -> Vec<Vec<usize>> {
    let of_layer = |layer| {
        let mut counts = vec![0_u32; routing.experts];
        let visited = visits.values().filter_map(|layers| layers.get(&layer));
        visited.flat_map(|visited| &visited.experts).for_each(|&expert| {
            if let Some(count) = counts.get_mut(expert) {
                *count += 1;
            }
        });
        let mut order: Vec<usize> = (0..routing.experts).collect();
        order.sort_by_key(|&expert| std::cmp::Reverse(counts[expert]));
        order
    };
    (0..routing.layers).map(of_layer).collect()
}

fn parse(text: &str) -> Result<Visits, String> {
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let mut rows = lines.map(|(at, line)| (at + 1, line.split(',').map(str::trim).collect::<Vec<_>>()));
    let (_, header) = rows.next().ok_or("it has no lines")?;
    let column = |name: &str| header.iter().position(|column| *column == name);
    let needed = |name: &str| column(name).ok_or_else(|| format!("it has no column `{name}`"));
    let (phase, layer) = (needed("phase")?, needed("layer")?);
    let step = column("step").or(column("token")).ok_or("it has no column `step` or `token`")?;
    let experts = column("experts").or(column("expert")).ok_or("it has no column `expert` or `experts`")?;
    let ahead = column("ahead");
    if ahead.is_some() && column("experts").is_none() {
        return Err("it has a column `ahead`, which needs `experts` beside it, and has none".to_owned());
    }
    let mut visits = Visits::new();
    for (at, row) in rows {
        if row.len() != header.len() {
            return Err(format!("line {at} has {} fields and the header {}", row.len(), header.len()));
        }
        let number = |text: &str| {
            text.parse::<u32>().map_err(|_| format!("line {at} has `{text}` where a number belongs"))
        };
        let key = (number(row[phase])? != 0, number(row[step])?);
        let list = |text: &str| -> Result<Vec<usize>, String> {
            let experts = text.split_whitespace();
            experts.map(|expert| Ok(number(expert.trim_end_matches('+'))? as usize)).collect()
        };
        let visited = visits.entry(key).or_default().entry(number(row[layer])? as usize).or_default();
        visited.experts.extend(list(row[experts])?);
        if let Some(ahead) = ahead {
            visited.ahead.get_or_insert_default().extend(list(row[ahead])?);
        }
    }
    Ok(visits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_A_LINE: &str = "# route_trace v1\nturn,phase,step,layer,slot,expert,weight\n\
        0,0,0,0,0,3,0.5\n0,0,0,0,1,1,0.5\n0,0,0,1,0,2,1\n0,0,0,1,1,3,1\n0,1,0,0,0,3,1\n0,1,0,0,1,0,1\n0,1,0,1,0,0,1\n0,1,0,1,1,1,1\n";
    const LISTS: &str = "phase,token,layer,experts\n0,0,0,3 1+\n0,0,1,2 3\n1,0,0,3+ 0\n1,0,1,0 1\n";

    const AHEAD: &str =
        "phase,token,layer,experts,ahead\n0,0,0,3 1,\n0,0,1,2 3,2 0\n1,0,0,3 0,\n1,0,1,0 1,3 1\n";

    fn experts(visits: &Visits) -> Vec<Vec<usize>> {
        visits.values().flat_map(BTreeMap::values).map(|visited| visited.experts.clone()).collect()
    }

    #[test]
    fn what_was_named_a_layer_early_is_beside_what_was_visited() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str, experts_used| {
            let path = folder.path().join("routes.csv");
            std::fs::write(&path, text).unwrap();
            Recording::read(&path, Some(Routing { layers: 2, experts: 4, experts_used })).unwrap().routes
        };
        assert!(!read(LISTS, 2).are_known_ahead());
        let routes = read(AHEAD, 2);
        assert_eq!((routes.experts(1, 1), routes.ahead(1, 1)), (Some(&[0, 1][..]), Some(&[1, 3][..])));
        // both are widened by the most used experts
        let wider = read(AHEAD, 3);
        assert_eq!((wider.experts(0, 1), wider.ahead(0, 1)), (Some(&[0, 2, 3][..]), Some(&[0, 1, 2][..])));
    }

    #[test]
    fn both_forms_say_the_same() {
        let lists = parse(LISTS).unwrap();
        assert_eq!(lists, parse(ONE_A_LINE).unwrap());
        assert_eq!(experts(&lists), [vec![3, 1], vec![2, 3], vec![3, 0], vec![0, 1]]);
    }

    #[test]
    fn what_is_no_recording_is_named() {
        for (text, problem) in [
            ("", "no lines"),
            ("phase,layer,experts\n", "no column `step` or `token`"),
            ("phase,token,layer,expert,ahead\n", "needs `experts` beside it"),
            ("phase,token,layer,experts\n0,0,x,1\n", "line 2 has `x` where a number belongs"),
            ("phase,token,layer,experts\n0,0,0\n", "line 2 has 3 fields and the header 4"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
