//! Makes a failing history shorter.

use crate::ops::Op;

/// The shortest part of a history that still fails, found by leaving pieces out: first halves, then ever smaller ones, until each
/// operation that is left is needed.
pub fn shrink(history: &[Op], fails: &mut dyn FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut left = history.to_vec();
    let mut piece = left.len().div_ceil(2);
    while piece > 0 {
        let mut from = 0;
        let mut gone = false;
        while from < left.len() {
            let rest = [&left[..from], &left[(from + piece).min(left.len())..]].concat();
            if fails(&rest) {
                left = rest;
                gone = true;
            } else {
                from += piece;
            }
        }
        // A piece that is needed with another one may not be without it.
        if piece > 1 || !gone {
            piece /= 2;
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_together_is_left() {
        let history: Vec<Op> = (0..200).map(|id| Op::Fsync { id }).collect();
        let has = |ops: &[Op], id| ops.contains(&Op::Fsync { id });
        let left = shrink(&history, &mut |ops| has(ops, 17) && has(ops, 150));
        assert_eq!(left, [Op::Fsync { id: 17 }, Op::Fsync { id: 150 }]);
    }
}
