//! What a comparison prints.

/// A table whose columns are as wide as they must be.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// With these headings.
    pub fn new(title: &str, head: &[&str]) -> Table {
        println!("\n{title}");
        Table { rows: vec![head.iter().map(|s| s.to_string()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for r in &self.rows {
            let cells = r.iter().enumerate().map(|(i, c)| match i {
                0 => format!("{c:<w$}", w = widths[0]),
                _ => format!("{c:>w$}", w = widths[i]),
            });
            println!("  {}", cells.collect::<Vec<_>>().join("  "));
        }
    }
}

/// The mean, and how far the values lie from it.
pub fn mean(v: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = v.clone().count().max(1) as f64;
    let m = v.clone().sum::<f64>() / n;
    (m, (v.map(|x| (x - m).powi(2)).sum::<f64>() / n).sqrt())
}

/// The one in the middle.
pub fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = of.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}
