//! A number whose change threads sleep for.

pub use crate::system::wait::Word;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn no_change_is_slept_through() {
        let word = Arc::new(Word::default());
        let other = Arc::clone(&word);
        let steps = 2000;
        let thread = std::thread::spawn(move || {
            for step in 0..steps {
                while other.load(Ordering::SeqCst) == 2 * step {
                    other.wait_while(2 * step);
                }
                other.store(2 * step + 2, Ordering::SeqCst);
                other.wake(1);
            }
        });
        for step in 0..steps {
            word.store(2 * step + 1, Ordering::SeqCst);
            word.wake(u32::MAX);
            while word.load(Ordering::SeqCst) == 2 * step + 1 {
                word.wait_while(2 * step + 1);
            }
        }
        thread.join().unwrap();
    }
}
