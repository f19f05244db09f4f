//! The `uxfs` program.
fn main() -> anyhow::Result<()> {
    let a: Vec<String> = std::env::args().collect();
    let size: u64 = a[2].parse()?;
    let sector: u32 = a.get(3).map_or(Ok(512), |s| s.parse())?;
    let dev = uxfs_device::FileDevice::create(a[1].as_ref(), Some(size))?;
    let o = uxfs_mkfs::Options {
        size,
        sector,
        agcount: a.get(4).map(|s| s.parse()).transpose()?,
        log_size: None,
        label: vec![],
        uuid: uxfs_mkfs::parse_uuid("11111111-2222-3333-4444-555555555555").unwrap(),
        time: (1, 0),
    };
    let sb = uxfs_mkfs::format(&dev, &o)?;
    print!("{}", uxfs_mkfs::print_geometry(&a[1], &sb));
    Ok(())
}
