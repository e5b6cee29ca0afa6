//! Tests of `cli.rs`.

use super::*;

#[test]
fn core_lists_are_ranges_and_ids_and_drafts_have_a_number() {
    assert_eq!(cores("0-3,6").map(|c| c.0), Ok(vec![0, 1, 2, 3, 6]));
    assert_eq!(cores("2,1,2").map(|c| c.0), Ok(vec![1, 2]));
    assert_eq!(
        ["auto", "off", "3"].map(|of| drafts(of).unwrap()),
        [Drafting::Auto, Drafting::Off, Drafting::Tokens(3)]
    );
    assert!(["0", "-1", "on", ""].iter().all(|bad| drafts(bad).is_err_and(|e| e.contains("such as 3"))));
    for bad in ["", "3-1", "a", "1,,2", "-1", "0-99999999"] {
        assert!(cores(bad).is_err_and(|e| e.contains("0-3,6")), "{bad}");
    }
}
