//! The reference against itself: tokens together, and one after another.

use super::*;

#[test]
fn tokens_together_are_tokens_one_after_another() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/golden/architectures");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let models: Vec<_> = files.filter(|path| path.extension().is_some_and(|name| name == "gguf")).collect();
    assert!(models.len() > 40, "{folder}");
    for path in models {
        let model = SourceModel::open(&path).unwrap();
        let tokens: Vec<u32> = (0..23).map(|i| 5 + i * 37 % (model.config().vocabulary as u32 - 5)).collect();
        let [mut together, mut alone] = [(); 2].map(|()| Reference::new(&model, kernels::best()));
        // the first ones have no past, the last ones have one
        for tokens in [&tokens[..14], &tokens[14..15], &tokens[15..]] {
            let found = together.hidden_of(tokens, &mut Every(&mut ()));
            let expected: Vec<f32> = tokens.iter().flat_map(|&token| alone.hidden(token)).collect();
            assert_eq!(found, expected, "{}", path.display());
        }
    }
}
