//! The staging area behind the slots, and the pieces in which streamed weights pass through its parts: of a large
//! matrix some panels, of small ones several whole matrices.
//! Not here: the order between copies and unpacking (`device::timeline`). Next: `routed.rs`.

use super::memory::matrix_bytes;
use super::ops::{Arrival, GpuWeight, OpMaker, WeightShape};
use crate::Error;
use device::clock::Nanos;
use device::gpu::{CopySource, DevicePtr, GpuOp, HostSpan, Launch, LaunchArgs};
use device::memory::HostRegion;
use device::timeline::{FillStep, STAGING_PARTS, StagingPart};
use kernels::quant::packed_bytes;
use plan_format::schedule::Layout;
use std::ops::Range;
use std::sync::Arc;

/// Alignment of a part.
const ALIGNMENT_BYTES: u64 = 256;

/// How the copy engine reaches host weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCopies {
    /// They are pinned.
    Direct,
    /// They are not: a thread brings them into pinned memory first.
    Bounced,
}

impl HostCopies {
    /// Weights as a source.
    pub fn source(self, span: HostSpan) -> CopySource {
        match self {
            HostCopies::Direct => CopySource::Span(span),
            HostCopies::Bounced => CopySource::Pageable(span),
        }
    }
}

/// The area, cut into parts of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingArea {
    start: DevicePtr,
    part_bytes: u64,
    parts: usize,
}

/// Which part is next: each has been left longest when its turn comes.
#[derive(Debug)]
pub struct PartCycle {
    next: usize,
    parts: usize,
}

/// A piece of a matrix: bytes of it, where they arrive, and what unpacks them.
#[derive(Clone)]
pub struct Unpacker {
    /// Bytes of the matrix on the host.
    bytes: Range<usize>,
    part: StagingPart,
    to: DevicePtr,
    unpack: Launch,
}

/// How the chosen matrices of a stack pass through the area, by place in the slot.
pub enum Passage {
    /// In pieces, by place.
    Pieces(Vec<Vec<Unpacker>>),
    /// Several at once, in groups of consecutive places.
    Groups(Vec<Group>),
}

/// Matrices that arrive in one part and are unpacked by one operator.
pub struct Group {
    part: StagingPart,
    /// Where each arrives.
    to: Vec<DevicePtr>,
    /// What unpacks the first one, two, … of them.
    unpack: Vec<Launch>,
}

impl StagingArea {
    /// An area of so many bytes for pieces of at least `panel_bytes`: one part where two would not hold them.
    pub fn new(start: DevicePtr, bytes: u64, panel_bytes: u64) -> StagingArea {
        let part_bytes = bytes / STAGING_PARTS as u64 / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        match part_bytes >= panel_bytes {
            true => StagingArea { start, part_bytes, parts: STAGING_PARTS },
            false => StagingArea { start, part_bytes: bytes, parts: 1 },
        }
    }

    /// Parts in turn, from the first on.
    pub fn cycle(&self) -> PartCycle {
        PartCycle { next: 0, parts: self.parts }
    }

    /// The steps that bring a whole stack from the host to its slot.
    /// Errors: a type without unpacking kernel, an area that does not hold a panel.
    pub fn whole(
        &self,
        (maker, copies): (&dyn OpMaker, HostCopies),
        place: &GpuWeight,
        host: &HostSpan,
        cycle: &mut PartCycle,
    ) -> Result<Vec<FillStep>, Error> {
        if let Some(flat) = flat(place, place.shape.stack)? {
            let pieces = self.pieces(maker, &flat, 0, cycle)?;
            let host = (copies, &host.region, host.range.start);
            return Ok(pieces.iter().flat_map(|piece| piece.steps(host)).collect());
        }
        let host_stride = matrix_bytes(&place.shape, Layout::CpuPanel16)? as usize;
        let mut steps = Vec::new();
        for slice in 0..place.shape.stack {
            let host = (copies, &host.region, host.range.start + slice * host_stride);
            let pieces = self.pieces(maker, place, slice, cycle)?;
            steps.extend(pieces.iter().flat_map(|piece| piece.steps(host)));
        }
        Ok(steps)
    }

    /// How as many matrices as there is room for pass through the area, each from anywhere.
    /// Errors: as [`StagingArea::whole`].
    pub fn passage(&self, maker: &dyn OpMaker, place: &GpuWeight, cycle: &mut PartCycle) -> Result<Passage, Error> {
        let host_stride = matrix_bytes(&place.shape, Layout::CpuPanel16)?;
        let at_once = (self.part_bytes / host_stride.max(1)) as usize;
        if at_once < 2 || place.room < 2 || flat(place, 2)?.is_none() {
            let pieces = (0..place.room).map(|slice| self.pieces(maker, place, slice, cycle));
            return Ok(Passage::Pieces(pieces.collect::<Result<_, _>>()?));
        }
        let group = |first: usize| {
            let count = at_once.min(place.room - first);
            let part = cycle.take();
            let from = self.start.offset(part.0 as u64 * self.part_bytes);
            let unpack = |matrices: usize| {
                let rows = (0, (matrices * place.shape.rows) as u32);
                let shape = WeightShape { rows: matrices * place.shape.rows, stack: 1, ..place.shape };
                let to = place.start.offset(first as u64 * place.stride_bytes);
                Ok(launch(maker.unpack(&Arrival { shape, rows, from, to })?))
            };
            let unpack = (1..=count).map(unpack).collect::<Result<_, Error>>()?;
            let to = (0..count).map(|matrix| from.offset(matrix as u64 * host_stride)).collect();
            Ok(Group { part, to, unpack })
        };
        Ok(Passage::Groups((0..place.room).step_by(at_once).map(group).collect::<Result<_, Error>>()?))
    }

    /// The pieces in which a matrix goes through the area to place `slice` of its slot.
    fn pieces(
        &self,
        maker: &dyn OpMaker,
        place: &GpuWeight,
        slice: usize,
        cycle: &mut PartCycle,
    ) -> Result<Vec<Unpacker>, Error> {
        let panel_bytes = packed_bytes(place.shape.ty, 1, place.shape.cols)?;
        let most_at_once = self.part_bytes as usize / panel_bytes;
        if most_at_once == 0 {
            return Err(Error::Program { what: "a staging area smaller than a panel of weights" });
        }
        // Pieces of nearly equal size: a short one at the end would leave the link waiting for the one before it.
        let panels = place.shape.rows.div_ceil(16);
        let at_once = panels.div_ceil(panels.div_ceil(most_at_once).max(1)).max(1);
        let piece = |first: usize| {
            let last = panels.min(first + at_once);
            let rows = (first as u32 * 16, (last * 16).min(place.shape.rows) as u32);
            let to: DevicePtr = place.start.offset(slice as u64 * place.stride_bytes);
            let part = cycle.take();
            let from = self.start.offset(part.0 as u64 * self.part_bytes);
            let unpack = launch(maker.unpack(&Arrival { shape: place.shape, rows, from, to })?);
            Ok(Unpacker { bytes: first * panel_bytes..last * panel_bytes, part, to: from, unpack })
        };
        (0..panels).step_by(at_once).map(piece).collect()
    }
}

/// `count` matrices of a stack as one matrix, where they follow each other without gaps on both sides.
fn flat(place: &GpuWeight, count: usize) -> Result<Option<GpuWeight>, Error> {
    let shape = place.shape;
    let one = WeightShape { rows: shape.rows * count, stack: 1, ..shape };
    let fits = shape.rows.is_multiple_of(16)
        && matrix_bytes(&one, Layout::CpuPanel16)? == matrix_bytes(&shape, Layout::CpuPanel16)? * count as u64
        && matrix_bytes(&one, place.layout)? == place.stride_bytes * count as u64
        && u32::try_from(one.rows).is_ok();
    Ok(fits.then_some(GpuWeight { shape: one, room: 1, ..*place }))
}

fn launch(op: Arc<dyn GpuOp>) -> Launch {
    Launch { op, args: LaunchArgs::default(), expected: Nanos(0) }
}

impl PartCycle {
    fn take(&mut self) -> StagingPart {
        let part = self.next;
        self.next = (part + 1) % self.parts.max(1);
        StagingPart(part)
    }
}

impl Unpacker {
    /// The steps that bring the piece of a matrix which begins at byte `start` of a region.
    fn steps(&self, (copies, region, start): (HostCopies, &Arc<HostRegion>, usize)) -> [FillStep; 2] {
        let range = start + self.bytes.start..start + self.bytes.end;
        let from = copies.source(HostSpan { region: Arc::clone(region), range });
        [FillStep::Stage(self.part, self.to, from), FillStep::Unpack(self.part, self.unpack.clone())]
    }
}

impl Passage {
    /// Appends the steps that bring matrices, which begin at bytes `starts` of a region, to the first places of the
    /// slot, as far as there is room.
    pub fn steps(
        &self,
        (copies, region): (HostCopies, &Arc<HostRegion>),
        matrix_bytes: usize,
        mut starts: impl ExactSizeIterator<Item = usize>,
        steps: &mut Vec<FillStep>,
    ) {
        match self {
            Passage::Pieces(places) => {
                for (pieces, start) in places.iter().zip(starts) {
                    steps.extend(pieces.iter().flat_map(|piece| piece.steps((copies, region, start))));
                }
            }
            Passage::Groups(groups) => {
                for group in groups {
                    let count = starts.len().min(group.to.len());
                    let Some(unpack) = count.checked_sub(1).and_then(|last| group.unpack.get(last)) else { break };
                    let own = group.to.iter().zip(starts.by_ref().take(count));
                    steps.extend(own.map(|(&to, start)| {
                        let span = HostSpan { region: Arc::clone(region), range: start..start + matrix_bytes };
                        FillStep::Stage(group.part, to, copies.source(span))
                    }));
                    steps.push(FillStep::Unpack(group.part, unpack.clone()));
                }
            }
        }
    }

    /// Steps of a full slot.
    pub fn steps_max(&self) -> usize {
        match self {
            Passage::Pieces(places) => places.iter().map(|pieces| 2 * pieces.len()).sum(),
            Passage::Groups(groups) => groups.iter().map(|group| group.to.len() + 1).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hybrid::ops::{Move, OpEnv, Sizes};
    use device::DeviceError;
    use device::gpu::GpuTarget;
    use kernels::quant::WeightType;
    use plan_format::program::Program;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Nothing;

    impl GpuOp for Nothing {
        fn name(&self) -> &str {
            "nothing"
        }
        fn run(&self, _: GpuTarget<'_>, _: LaunchArgs) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    /// Counts the unpackers that it makes.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl OpMaker for Counting {
        fn scratch_bytes(&self, _: &Program, _: &Sizes) -> Result<u64, Error> {
            Ok(0)
        }
        fn resident_layout(&self, _: &WeightShape, planned: Layout) -> Layout {
            planned
        }
        fn slot_layout(&self, _: &WeightShape) -> Layout {
            Layout::GpuTiled
        }
        fn unpack(&self, _: &Arrival) -> Result<Arc<dyn GpuOp>, Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(Nothing))
        }
        fn prologue(&self, _: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, Error> {
            Ok(Vec::new())
        }
        fn run(&self, _: Range<usize>, _: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, Error> {
            Ok(Vec::new())
        }
        fn mover(&self, _: &[Move]) -> Result<Arc<dyn GpuOp>, Error> {
            Ok(Arc::new(Nothing))
        }
        fn copier(&self, _: DevicePtr, _: DevicePtr, _: u64) -> Result<Arc<dyn GpuOp>, Error> {
            Ok(Arc::new(Nothing))
        }
    }

    fn area() -> StagingArea {
        StagingArea::new(DevicePtr(1 << 40), 8 << 20, 1 << 16)
    }

    fn place(ty: WeightType, (rows, cols, stack): (usize, usize, usize), room: usize) -> GpuWeight {
        let shape = WeightShape { ty, rows, cols, stack };
        let stride_bytes = matrix_bytes(&shape, Layout::GpuTiled).unwrap();
        GpuWeight { shape, layout: Layout::GpuTiled, start: DevicePtr(1 << 41), stride_bytes, places: None, room }
    }

    fn host() -> HostSpan {
        HostSpan { region: Arc::new(HostRegion::new(0).unwrap()), range: 0..0 }
    }

    /// A stack arrives in as few pieces as the area allows, whatever its matrices are; parts take turns.
    #[track_caller]
    fn check_whole(ty: WeightType, dims: (usize, usize, usize), pieces: usize) {
        let maker = Counting::default();
        let place = place(ty, dims, dims.2);
        let mut cycle = area().cycle();
        let steps = area().whole((&maker, HostCopies::Direct), &place, &host(), &mut cycle).unwrap();
        assert_eq!((maker.0.into_inner(), steps.len()), (pieces, 2 * pieces));
        let parts = steps.iter().filter_map(|step| match step {
            FillStep::Unpack(part, _) => Some(part.0),
            _ => None,
        });
        assert!(parts.eq((0..pieces).map(|piece| piece % STAGING_PARTS)));
        let bytes: usize = steps.iter().filter_map(|step| Some(source_bytes(step.copy()?.1))).sum();
        let packed = matrix_bytes(&place.shape, Layout::CpuPanel16).unwrap() as usize * dims.2;
        assert_eq!(bytes, packed);
    }

    fn source_bytes(source: &CopySource) -> usize {
        match source {
            CopySource::Span(span) | CopySource::Pageable(span) => span.range.len(),
            CopySource::Mapped { bytes, .. } => *bytes as usize,
        }
    }

    #[test]
    fn stacks_and_matrices_arrive_in_few_pieces() {
        // 128 experts of 0.9 MB: 28 pieces, not 128.
        check_whole(WeightType::Q4_K, (768, 2048, 128), 28);
        check_whole(WeightType::MXFP4, (2880, 2880, 32), 34);
        check_whole(WeightType::Q4_K, (17408, 5120, 1), 12);
        check_whole(WeightType::Q4_K, (16, 256, 1), 1);
    }

    /// Chosen experts: operators made at load, and steps of a fill of `chosen` of them.
    #[track_caller]
    fn check_chosen(place: GpuWeight, chosen: usize, made: usize, (copies, unpackers): (usize, usize)) {
        let maker = Counting::default();
        let passage = area().passage(&maker, &place, &mut area().cycle()).unwrap();
        let mut steps = Vec::new();
        let region = host().region;
        let matrix = matrix_bytes(&place.shape, Layout::CpuPanel16).unwrap() as usize;
        let starts = (0..chosen).map(|place| place * matrix);
        passage.steps((HostCopies::Direct, &region), matrix, starts, &mut steps);
        let count = steps.iter().filter(|step| step.copy().is_some()).count();
        assert_eq!((maker.0.into_inner(), count, steps.len() - count), (made, copies, unpackers));
        assert!(steps.len() <= passage.steps_max());
        let bytes: usize = steps.iter().filter_map(|step| Some(source_bytes(step.copy()?.1))).sum();
        assert_eq!(bytes, chosen * matrix);
    }

    #[test]
    fn chosen_experts_share_unpackers_where_several_fit_a_part() {
        let small = place(WeightType::Q4_K, (768, 2048, 128), 8);
        check_chosen(small, 8, 8, (8, 2));
        check_chosen(small, 5, 8, (5, 2));
        check_chosen(small, 4, 8, (4, 1));
        check_chosen(small, 0, 8, (0, 0));
        // Larger than a part: pieces of each.
        check_chosen(place(WeightType::MXFP4, (2880, 2880, 32), 4), 4, 8, (8, 8));
        // Rows that do not fill panels cannot follow each other.
        check_chosen(place(WeightType::Q4_K, (24, 256, 8), 4), 4, 4, (4, 4));
    }
}
