//! Products of every type, layout and batch size against the oracle of `crate::cases`; groups of parts, stacks of
//! matrices by slot and by sorted expert against single products. Next: `operators.rs`.

use super::{Bench, Machine, TENSOR_CORE_NMSE_MAX, judge, relative_norm};
use crate::cases::{MATMUL_NMSE_MAX, MatmulCase, PLAIN_MATMUL_NMSE_MAX, Random, matmul_cases, random_weights};
use crate::cuda::experts::{InputRows, Slots, Sorted, grouped, has_grouped, slots, sort};
use crate::cuda::product::{self, Activations, Chip, Family, Form, Part, TokenTile};
use crate::cuda::rows::convert;
use crate::cuda::{DevicePtr, Forms, GpuLayout, GpuMatrix, View, repack, tile_rows};
use crate::quant::{WeightType, dequantise_row};

/// Runs the product table and the stacks for the types that `wanted` accepts.
///
/// # Errors
/// The first case that misses its tolerance.
pub fn check_products(machine: &mut dyn Machine, wanted: &dyn Fn(WeightType) -> bool) -> Result<(), String> {
    for case in matmul_cases().into_iter().filter(|case| wanted(case.ty)) {
        for layout in layouts(case.ty) {
            for chip in own_chips(machine, case.ty, layout) {
                let what = format!("{}: {chip:?}", machine.name());
                check_case(machine, &case, layout, chip).map_err(|error| format!("{what}: {error}"))?;
            }
        }
    }
    for ty in WeightType::ALL.into_iter().filter(|&ty| wanted(ty)) {
        for layout in layouts(ty) {
            let what = format!("{}: {ty} {layout:?}", machine.name());
            check_tiles(machine, ty, layout).map_err(|error| format!("{what}: {error}"))?;
            for chip in own_chips(machine, ty, layout) {
                check_group(machine, ty, layout, chip).map_err(|error| format!("{what}: {chip:?}: {error}"))?;
                check_stack(machine, ty, layout, chip).map_err(|error| format!("{what}: {chip:?}: {error}"))?;
            }
        }
    }
    Ok(())
}

/// The machine's chips that have a matrix kernel of their own for the type.
fn own_chips(machine: &dyn Machine, ty: WeightType, layout: GpuLayout) -> Vec<Chip> {
    machine.chips().into_iter().filter(|chip| chip.matmul_module(ty, layout).0 == *chip).collect()
}

fn layouts(ty: WeightType) -> impl Iterator<Item = GpuLayout> {
    [GpuLayout::Gguf, GpuLayout::Tiled].into_iter().filter(move |layout| layout.exists_for(ty))
}

impl Bench<'_> {
    /// Uploads rows in a layout; tiled ones are made on the device and compared with the reference conversion.
    fn put_matrix(
        &mut self,
        ty: WeightType,
        layout: GpuLayout,
        cols: usize,
        bytes: &[u8],
    ) -> Result<DevicePtr, String> {
        let plain = self.put(bytes)?;
        if layout == GpuLayout::Gguf {
            return Ok(plain);
        }
        let fail = |error: crate::KernelError| error.to_string();
        let rows = bytes.len() / ty.row_bytes(cols).map_err(fail)?;
        let mut wanted = vec![0u8; rows * layout.row_bytes(ty, cols).map_err(fail)?];
        tile_rows(ty, cols, bytes, &mut wanted).map_err(fail)?;
        let tiled = self.room(wanted.len())?;
        self.run(repack(ty, cols as u32, rows as u64, plain, tiled).map_err(fail)?)?;
        let got: Vec<u8> = self.get(tiled, wanted.len())?;
        if got != wanted { Err("repacked bytes differ from the reference".to_string()) } else { Ok(tiled) }
    }

    /// Activations in the form that a kernel reads.
    fn put_activations(&mut self, form: Form, x: View, rows: usize) -> Result<Activations, String> {
        let cols = x.cols as usize;
        let (data, scales) = match form {
            Form::F32 => (x.data, DevicePtr::NULL),
            Form::Q8 => (self.room(rows.next_multiple_of(4) * cols)?, self.room(rows.next_multiple_of(4) * cols / 4)?),
            Form::F16 => (self.room(rows * cols * 2)?, self.room(rows * 4)?),
            Form::Bf16 => (self.room(rows * cols * 2)?, DevicePtr::NULL),
        };
        let none = Forms::default();
        let forms = match form {
            Form::F32 => none,
            Form::Q8 => Forms { q8: data, q8_scales: scales, ..none },
            Form::F16 => Forms { f16: data, row_scale: scales, ..none },
            Form::Bf16 => Forms { bf16: data, ..none },
        };
        if form != Form::F32 {
            self.run([convert(x, rows as u32, forms)])?;
        }
        Ok(Activations { form, data, scales, stride: x.cols })
    }
}

fn check_case(machine: &mut dyn Machine, case: &MatmulCase, layout: GpuLayout, chip: Chip) -> Result<(), String> {
    let MatmulCase { ty, rows, cols, tokens } = *case;
    machine.clear()?;
    let mut bench = Bench { machine };
    let x = bench.put_rows(&case.activations(), cols)?;
    let data = bench.put_matrix(ty, layout, cols, &case.weights())?;
    let weight = GpuMatrix { ty, layout, data, rows: rows as u32, cols: cols as u32 };
    let out = bench.room_rows(tokens, rows)?;
    let part = Part { weight, bias: DevicePtr::NULL, residual: View::default(), out };
    let form = product::form(ty, cols as u32, tokens as u32);
    let activations = bench.put_activations(form, x, tokens)?;
    bench.run(product::product(chip, &[part], &activations, tokens as u32).map_err(|error| error.to_string())?)?;
    let got = bench.get(out.data, tokens * rows)?;
    judge(&format!("{case:?} {layout:?}"), case.nmse(&got), tolerance(form))
}

/// Error that a kernel reading this form may make.
fn tolerance(form: Form) -> f64 {
    match form {
        Form::F32 => PLAIN_MATMUL_NMSE_MAX,
        Form::Q8 => MATMUL_NMSE_MAX,
        Form::F16 | Form::Bf16 => TENSOR_CORE_NMSE_MAX,
    }
}

/// All token tiles of the tensor-core kernel on a shape with ragged ends, one row far beyond F16's range.
fn check_tiles(machine: &mut dyn Machine, ty: WeightType, layout: GpuLayout) -> Result<(), String> {
    let (rows, cols, tokens) = (140, if ty.block().0 == 256 { 512 } else { 288 }, 70);
    let case = MatmulCase { ty, rows, cols, tokens };
    if Family::of(ty, cols as u32, u32::MAX) != Family::Tile {
        return Ok(());
    }
    let (weights, mut x) = (case.weights(), case.activations());
    x[3 * cols..4 * cols].iter_mut().for_each(|x| *x *= 1e6);
    let expected = oracle(ty, cols, &weights, &x);
    let chips = own_chips(machine, ty, layout).into_iter();
    let tiles = chips.flat_map(|chip| TokenTile::ALL.map(|tile| (chip, tile)));
    for (chip, tile) in tiles.filter(|(chip, tile)| tile.exists_on(*chip)) {
        machine.clear()?;
        let mut bench = Bench { machine: &mut *machine };
        let view = bench.put_rows(&x, cols)?;
        let data = bench.put_matrix(ty, layout, cols, &weights)?;
        let weight = GpuMatrix { ty, layout, data, rows: rows as u32, cols: cols as u32 };
        let out = bench.room_rows(tokens, rows)?;
        let part = Part { weight, bias: DevicePtr::NULL, residual: View::default(), out };
        let activations = bench.put_activations(product::tensor_core_form(ty), view, tokens)?;
        let launch =
            product::matmul(chip, &[part], &activations, tokens as u32, tile).map_err(|error| error.to_string())?;
        bench.run([launch])?;
        let got: Vec<f32> = bench.get(out.data, tokens * rows)?;
        for (token, (got, want)) in got.chunks(rows).zip(expected.chunks(rows)).enumerate() {
            let error = relative_norm(got, want).powi(2);
            judge(&format!("{chip:?} {tile:?}, token {token}"), error, TENSOR_CORE_NMSE_MAX)?;
        }
    }
    Ok(())
}

/// Exact weights times exact activations: `[tokens, rows]`.
fn oracle(ty: WeightType, cols: usize, weights: &[u8], x: &[f32]) -> Vec<f64> {
    let row_bytes = ty.row_bytes(cols).unwrap_or(1);
    let rows: Vec<Vec<f32>> = weights.chunks_exact(row_bytes).map(|bytes| row(ty, cols, bytes)).collect();
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
    x.chunks_exact(cols).flat_map(|x| rows.iter().map(move |w| dot(x, w))).collect()
}

fn row(ty: WeightType, cols: usize, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; cols];
    // A failure leaves NaNs, which no comparison passes.
    let _ = dequantise_row(ty, bytes, &mut out);
    out
}

/// Three parts with bias and residual in one group, for each kernel family.
fn check_group(machine: &mut dyn Machine, ty: WeightType, layout: GpuLayout, chip: Chip) -> Result<(), String> {
    let cols = if ty.block().0 == 256 { 512 } else { 320 };
    for tokens in [1, 2, 3, 9, 40] {
        machine.clear()?;
        let mut bench = Bench { machine: &mut *machine };
        let mut random = Random::new(5);
        let x: Vec<f32> = (0..tokens * cols).map(|_| random.normal()).collect();
        let view = bench.put_rows(&x, cols)?;
        let form = product::form(ty, cols as u32, tokens as u32);
        let activations = bench.put_activations(form, view, tokens)?;
        let (mut parts, mut expected) = (Vec::new(), Vec::new());
        for (index, rows) in [140, 7, 19].into_iter().enumerate() {
            let weights = random_weights(ty, rows, cols, 31 + index as u64);
            let bias: Vec<f32> = (0..rows).map(|_| random.normal()).collect();
            let residual: Vec<f32> = (0..tokens * rows).map(|_| random.normal()).collect();
            let mut want = oracle(ty, cols, &weights, &x);
            want.iter_mut().zip(&residual).for_each(|(w, r)| *w += f64::from(*r));
            want.iter_mut().enumerate().for_each(|(i, w)| *w += f64::from(bias[i % rows]));
            expected.push(want);
            let data = bench.put_matrix(ty, layout, cols, &weights)?;
            let weight = GpuMatrix { ty, layout, data, rows: rows as u32, cols: cols as u32 };
            let residual = bench.put_rows(&residual, rows)?;
            parts.push(Part { weight, bias: bench.put(&bias)?, residual, out: bench.room_rows(tokens, rows)? });
        }
        bench.run(product::product(chip, &parts, &activations, tokens as u32).map_err(|error| error.to_string())?)?;
        for (part, want) in parts.iter().zip(&expected) {
            let got: Vec<f32> = bench.get(part.out.data, want.len())?;
            judge(&format!("group of {tokens} tokens"), relative_norm(&got, want).powi(2), MATMUL_NMSE_MAX)?;
        }
    }
    Ok(())
}

/// A stack of experts by slot and sorted, shared and own inputs, with biases.
fn check_stack(machine: &mut dyn Machine, ty: WeightType, layout: GpuLayout, chip: Chip) -> Result<(), String> {
    const EXPERTS: usize = 5;
    const CHOSEN: usize = 3;
    let (rows, cols) = (36, if ty.block().0 == 256 { 256 } else { 96 });
    let mut random = Random::new(8);
    let weights = random_weights(ty, EXPERTS * rows, cols, 77);
    let plain_bytes = weights.len() / EXPERTS;
    let bias: Vec<f32> = (0..EXPERTS * rows).map(|_| random.normal()).collect();
    for (tokens, input) in
        [(2, InputRows::PerToken), (2, InputRows::PerEntry), (90, InputRows::PerToken), (90, InputRows::PerEntry)]
    {
        machine.clear()?;
        let mut bench = Bench { machine: &mut *machine };
        // Expert 3 is never chosen; expert 4 by almost every token.
        let id = |t: usize, j: usize| [[0, 4, 1], [4, 2, 0], [1, 2, 4]][t % 3][j];
        let ids: Vec<i32> = (0..tokens * CHOSEN).map(|e| id(e / CHOSEN, e % CHOSEN)).collect();
        let x_rows = if input == InputRows::PerEntry { tokens * CHOSEN } else { tokens };
        let x: Vec<f32> = (0..x_rows * cols).map(|_| random.normal()).collect();
        let expected: Vec<f64> = (0..tokens * CHOSEN)
            .flat_map(|e| {
                let x_row = if input == InputRows::PerEntry { e } else { e / CHOSEN };
                let expert = ids[e] as usize;
                let mut out =
                    oracle(ty, cols, &weights[expert * plain_bytes..][..plain_bytes], &x[x_row * cols..][..cols]);
                out.iter_mut().zip(&bias[expert * rows..]).for_each(|(o, b)| *o += f64::from(*b));
                out
            })
            .collect();
        let view = bench.put_rows(&x, cols)?;
        // Matrices lie in another order, with gaps; the one that nobody chooses is not there.
        let places = [2i32, 0, 1, -1, 3];
        let matrix_bytes = (rows * layout.row_bytes(ty, cols).unwrap_or(0)).next_multiple_of(256) + 256;
        let data = bench.room(matrix_bytes * EXPERTS)?;
        for (expert, &place) in places.iter().enumerate().filter(|(_, place)| **place >= 0) {
            let mut tiled = vec![0; rows * layout.row_bytes(ty, cols).unwrap_or(0)];
            let plain = &weights[expert * plain_bytes..][..plain_bytes];
            match layout {
                GpuLayout::Gguf => tiled.copy_from_slice(plain),
                GpuLayout::Tiled => tile_rows(ty, cols, plain, &mut tiled).map_err(|error| error.to_string())?,
            }
            bench.machine.write(data.offset(matrix_bytes as u64 * place as u64), &tiled)?;
        }
        let weight = GpuMatrix { ty, layout, data, rows: rows as u32, cols: cols as u32 };
        let out = bench.room_rows(tokens, CHOSEN * rows)?;
        let part = Part { weight, bias: bench.put(&bias)?, residual: View::default(), out };
        let ids = View { data: bench.put(&ids)?, stride: CHOSEN as u32, cols: CHOSEN as u32 };
        let own = input == InputRows::PerEntry;
        let slot = Slots {
            ids,
            slots: CHOSEN as u32,
            matrices: EXPERTS as u32,
            input_stride: if own { cols as u32 } else { 0 },
            places: bench.put(&places)?,
            matrix_bytes: matrix_bytes as u64,
        };
        if tokens == 2 || !has_grouped(&part) {
            let form = if ty.is_plain() { Form::F32 } else { Form::Q8 };
            let mut activations = bench.put_activations(form, view, x_rows)?;
            activations.stride = if own { (CHOSEN * cols) as u32 } else { cols as u32 };
            bench.run([slots(&[part], &activations, tokens as u32, &slot).map_err(|error| error.to_string())?])?;
        } else {
            let entries = (tokens * CHOSEN) as u32;
            let tile = Sorted::tile_for(entries, EXPERTS as u32);
            let tiles = bench.room(16 * Sorted::tiles_max(tile, entries, EXPERTS as u32) as usize)?;
            let sorted = Sorted { order: bench.room(4 * entries as usize)?, tiles, n_tiles: bench.room(4)?, tile };
            let activations = bench.put_activations(product::tensor_core_form(ty), view, x_rows)?;
            let sorting = sort(ids, tokens as u32, CHOSEN as u32, EXPERTS as u32, &sorted);
            let product = grouped(chip, &[part], &activations, tokens as u32, &slot, input, &sorted);
            bench.run([sorting, product.map_err(|error| error.to_string())?])?;
        }
        let got: Vec<f32> = bench.get(out.data, expected.len())?;
        judge(&format!("stack, {tokens} tokens, {input:?}"), relative_norm(&got, &expected).powi(2), MATMUL_NMSE_MAX)?;
    }
    Ok(())
}
