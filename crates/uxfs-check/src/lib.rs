//! The checker.
use std::fmt;
/// One thing that does not hold.
#[derive(Clone, Debug)]
pub struct Finding { pub code: &'static str, pub structure: &'static str, pub place: Option<u64>, pub message: String }
impl fmt::Display for Finding { fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{}", self.message) } }
#[derive(Default)]
pub struct Report { pub findings: Vec<Finding> }
impl Report { pub fn is_sound(&self)->bool{self.findings.is_empty()} pub fn add(&mut self, code:&'static str, structure:&'static str, place:Option<u64>, m:&str){ self.findings.push(Finding{code,structure,place,message:m.into()}) } }
pub fn check(_d: &dyn uxfs_device::Device) -> Report { Report::default() }
