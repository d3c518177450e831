//! A lease without a broker, for models: a test grants and recalls.
#![allow(missing_docs, reason = "for models of this crate only")]

use super::{Pool, PoolBuilder};
use crate::engine::{BrokerLease, LeaseBounds, Lender};
use crate::queue::Tenant;
use crate::sync::Ordering;
use crate::sync::plain::{Arc, AtomicU64};
use std::time::Duration;

#[derive(Debug, Default)]
struct Stub {
    asked: AtomicU64,
    /// The largest need that was ever stated.
    most_asked: AtomicU64,
    /// The bound that was applied last.
    leased: AtomicU64,
    looks: AtomicU64,
}

impl Lender for Stub {
    fn ask(&self, _turn: u64, wanted: u64) {
        self.asked.store(wanted, Ordering::SeqCst);
        self.most_asked.fetch_max(wanted, Ordering::SeqCst);
    }

    fn ask_and_wait(&self, _wanted: u64) -> bool {
        false
    }

    fn withdraw(&self) {
        self.asked.store(0, Ordering::SeqCst);
    }

    fn is_asking(&self) -> bool {
        self.asked.load(Ordering::SeqCst) > 0
    }

    fn look_again(&self) {
        self.looks.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self) {}

    fn figures(&self) -> BrokerLease {
        BrokerLease {
            leased: self.leased.load(Ordering::SeqCst),
            guaranteed: 0,
            limit: u64::MAX,
            recalled: 0,
            is_waiting: self.is_asking(),
            is_connected: true,
            refused: None,
            returning: Duration::ZERO,
            granting: Duration::ZERO,
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct LeaseModel(Arc<Stub>);

/// A pool with such a lease.
#[derive(Debug)]
pub struct Leased {
    stub: Arc<Stub>,
    tenant: Tenant,
}

impl LeaseModel {
    pub fn attach(self, pool: &Pool) -> Leased {
        let stub = self.0;
        let tenant = Tenant::new(pool.service(), stub.clone());
        Leased { stub, tenant }
    }
}

impl Leased {
    /// Applies bounds, with needs counted from 0. Returns the bytes that are held afterwards.
    pub fn apply(&self, first: u64, bound: u64, is_binding: bool) -> u64 {
        self.apply_after(0, first, bound, is_binding)
    }

    /// Applies bounds after that many bytes were granted. Returns the bytes that are held afterwards.
    pub fn apply_after(&self, granted: u64, first: u64, bound: u64, is_binding: bool) -> u64 {
        let held = self.tenant.apply(LeaseBounds {
            granted,
            first,
            bound,
            is_binding,
        });
        self.stub.leased.store(bound, Ordering::SeqCst);
        held.expect("the pool lives").held
    }

    /// Returns whether memory came back since this was called last.
    pub fn take_look(&self) -> bool {
        self.stub.looks.swap(0, Ordering::SeqCst) > 0
    }

    /// Returns the largest need that a waiting request ever stated.
    pub fn most_asked(&self) -> u64 {
        self.stub.most_asked.load(Ordering::SeqCst)
    }

    /// Returns what waiting requests asked for.
    pub fn asked(&self) -> u64 {
        self.stub.asked.load(Ordering::SeqCst)
    }
}

impl PoolBuilder {
    pub fn lease_model(mut self, model: &LeaseModel) -> Self {
        self.lease_model = Some(model.0.clone());
        self
    }
}
