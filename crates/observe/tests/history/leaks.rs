//! Reports of live blocks and reservations, with the locations that allocated them.

use super::*;

#[test]
fn leaks_are_grouped_by_place_the_largest_first() {
    let device = manual();
    let pool = recorded(&device, 32 * MIB);
    let (_, first) = stream(&device, &pool);
    let tag = Tag::new("leaked");
    assert_eq!(pool.leaks().to_string(), "no block is in use");
    let mut small = Vec::new();
    let mut small_at = here();
    for _ in 0..3 {
        let (block, at) = (pool.try_allocate(&first, 500), here());
        small.push(block.unwrap());
        small_at = at;
        device.advance(us(1000));
    }
    let (large, large_at) = (pool.allocate(&first, 3 * MIB).tag(tag).try_now(), here());
    let large = large.unwrap();
    drop(pool.try_allocate(&first, MIB).unwrap());
    device.advance(us(500));
    let leaks = pool.leaks();
    assert_eq!((leaks.blocks.len(), leaks.bytes()), (4, 3 * MIB + 3 * 512));
    let text = leaks.to_string();
    let lines: Vec<_> = text.lines().collect();
    let line_of = |site: &Site| format!("{}:{}:", site.file, site.line);
    assert_eq!(lines[0], "4 blocks of 3.0 MiB in use");
    let begins = [
        format!(
            "  1 block of 3.0 MiB, the oldest for 0.500 ms, for leaked, from {}",
            line_of(&large_at)
        ),
        format!(
            "  3 blocks of 1.5 KiB, the oldest for 3.500 ms, from {}",
            line_of(&small_at)
        ),
    ];
    for (line, begin) in lines[1..].iter().zip(&begins) {
        assert!(
            line.starts_with(begin.as_str()),
            "{line} instead of {begin}"
        );
    }
    assert_eq!(lines.len(), 3);
    drop((large, small));
}

/// Reservations live as blocks do: with their remaining bytes, their locations and their tags.
#[test]
fn leaks_know_reservations() {
    let device = manual();
    let pool = recorded(&device, 32 * MIB);
    let (_, first) = stream(&device, &pool);
    let tag = Tag::new("leaked: reserved");
    let (reserve, at) = (pool.reserve(16 * MIB).tag(tag), here());
    let mut reservation = reserve.try_now().unwrap();
    device.advance(us(1000));
    let (part, part_at) = (reservation.split(4 * MIB), here());
    let part = part.unwrap();
    let block = reservation.allocate(&first, MIB).unwrap();
    let leaks = pool.leaks();
    assert_eq!((leaks.blocks.len(), leaks.reservations.len()), (1, 2));
    assert_eq!(leaks.bytes(), 16 * MIB);
    let left = leaks
        .reservations
        .iter()
        .map(|reservation| reservation.left);
    assert_eq!(left.collect::<Vec<_>>(), [11 * MIB, 4 * MIB]);
    let origin = leaks.reservations[1].origin.as_ref().unwrap();
    assert_eq!((origin.tag, origin.time), (Some(tag), us(1000)));
    assert_eq!(
        (&origin.site.file, origin.site.line),
        (&part_at.file, part_at.line)
    );
    let text = leaks.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "1 block of 1.0 MiB in use, 2 reservations with 15.0 MiB left"
    );
    let begin = format!(
        "  1 reservation with 11.0 MiB left, the oldest for 1.000 ms, for leaked: reserved, from {}:{}:",
        at.file, at.line
    );
    assert!(
        lines[2].starts_with(&begin),
        "{} instead of {begin}",
        lines[2]
    );
    assert_eq!(lines.len(), 4);
    drop((part, block));
    // Forgotten, and with nothing left.
    let rest = reservation.allocate(&first, 12 * MIB).unwrap();
    std::mem::forget(reservation);
    let leaks = pool.leaks();
    assert_eq!((leaks.reservations.len(), leaks.bytes()), (1, 12 * MIB));
    drop(rest);
    pool.close();
    assert_eq!(pool.leaks().reservations[0].left, 12 * MIB);
    // Without a history their locations are not known.
    let silent = crate::common::pool(&device, 8 * MIB);
    let reservation = silent.reserve(MIB).try_now().unwrap();
    let leaks = silent.leaks();
    assert_eq!(
        leaks.to_string(),
        "1 reservation with 1.0 MiB left; build the pool with weirpool_observe::Recorder to record their locations"
    );
    assert!(leaks.reservations[0].origin.is_none() && !leaks.is_empty());
    drop(reservation);
    assert!(silent.leaks().is_empty());
}

#[test]
fn close_reports_live_blocks() {
    let device = manual();
    // One of its blocks is forgotten.
    let pool = builder(&device, 8 * MIB).build().unwrap();
    let (_, first) = stream(&device, &pool);
    let block = pool.try_allocate(&first, MIB).unwrap();
    std::mem::forget(pool.try_allocate(&first, 4096).unwrap());
    pool.close();
    let leaks = pool.leaks();
    assert_eq!((leaks.blocks.len(), leaks.bytes()), (2, MIB + 4096));
    assert_eq!(leaks.blocks[0].stream, Some(first.id()));
    let text = leaks.to_string();
    assert!(
        text.starts_with(
            "2 blocks of 1.0 MiB in use; build the pool with weirpool_observe::Recorder "
        ),
        "{text}"
    );
    drop(block);
    pool.close();
    assert_eq!(pool.leaks().blocks.len(), 1);
}
