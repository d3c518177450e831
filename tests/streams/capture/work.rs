//! Fills and copies in captures.

use super::*;
use crate::common::{assert_matches, until_freed};
use weirpool::{AllocError, CopyError, Fill, FillAt};

#[test]
fn zero_fill_is_captured() {
    let site = Site::new(64 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let block = site.pool.allocate(&site.stream, MIB).zeroed();
    let mut block = block.try_now().unwrap();
    let mut later = site.take(MIB);
    later.fill(&site.stream, Fill::Byte(9)).unwrap();
    until_freed(&site.stream, &block);
    let graph = capture.end().unwrap();
    for _ in 0..2 {
        for block in [&block, &later] {
            site.device.fill(block.address(), MIB, 0xee).unwrap();
        }
        graph.launch(&site.stream).unwrap();
        site.device.advance_to_end();
        assert_eq!(site.read(&block, 3), [0; 3]);
        assert_eq!(site.read(&later, 3), [9; 3]);
    }
    block.zero(&site.stream).unwrap(); // outside the capture, at once
}

#[test]
fn fills_of_the_pool_are_captured_for_blocks_of_the_capture_only() {
    let site = Site::with(64 * MIB, |builder| {
        let builder = builder.fill(FillAt::Allocation, Fill::Zero);
        builder.fill(FillAt::Free, Fill::Poison)
    });
    let before = site.take(MIB);
    site.device.advance_to_end();
    let capture = site.pool.capture(&site.stream).unwrap();
    let (first, second) = (site.take(MIB), site.take(MIB));
    let [freed, kept, old] = [&first, &second, &before].map(|block| block.address());
    drop((first, before));
    let graph = capture.end().unwrap();
    for address in [freed, kept, old] {
        site.device.fill(address, MIB, 0x11).unwrap();
    }
    graph.launch(&site.stream).unwrap();
    site.device.advance_to_end();
    let byte = |address| {
        let mut byte = [0];
        site.device.read(address, &mut byte).unwrap();
        byte[0]
    };
    assert_eq!([freed, kept, old].map(byte), [0xff, 0, 0x11]);
}

#[test]
fn upload_is_captured_with_its_bytes() {
    let site = Site::new(64 * MIB);
    let capture = site.pool.capture(&site.stream).unwrap();
    let mut block = site.take(MIB);
    let upload = block.upload(&site.stream, 1, b"weir").unwrap();
    crate::common::now(upload).unwrap();
    let refused = block.download(&site.stream, 0..4).map(drop);
    let refused = refused.expect_err("it is captured");
    assert_matches!(refused, CopyError::Device(_));
    let graph = capture.end().unwrap();
    for _ in 0..2 {
        site.device.fill(block.address(), MIB, 0).unwrap();
        graph.launch(&site.stream).unwrap();
        let download = block.download(&site.stream, 0..5).unwrap();
        site.device.advance_to_end();
        assert_eq!(crate::common::now(download).unwrap(), b"\0weir");
    }
}

#[test]
fn refused_fill_loses_no_memory() {
    use weirpool::device::DeviceErrorKind::Other;
    use weirpool::device::sim::Call;
    let site = Site::new(64 * MIB);
    let _capture = site.pool.capture(&site.stream).unwrap();
    site.device.faults().fail_next(Call::Fill, Other);
    let refused = site.pool.allocate(&site.stream, MIB).zeroed().try_now();
    assert_matches!(refused, Err(AllocError::Device(_)));
}
