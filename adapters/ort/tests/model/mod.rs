//! A model of matrix products, additions and rectifiers, as the bytes of a file of ONNX, and its values computed here.

/// The columns of the input and of each weight.
pub(crate) const WIDTH: usize = 256;
const LAYERS: usize = 4;

/// The bytes of a message of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value > 127 {
            self.0.push(value as u8 | 128);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: usize) -> Self {
        self.varint(field << 3);
        self.varint(value as u64);
        self
    }

    fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn texts(self, field: u64, values: &[&str]) -> Self {
        (values.iter()).fold(self, |message, value| {
            message.bytes(field, value.as_bytes())
        })
    }

    fn message(self, field: u64, value: Self) -> Self {
        self.bytes(field, &value.0)
    }
}

/// `onnx.NodeProto`
fn node(operator: &str, inputs: &[&str], output: &str) -> Message {
    let node = Message::default().texts(1, inputs);
    node.texts(2, &[output]).texts(4, &[operator])
}

/// `onnx.TensorProto` of 32-bit floats.
fn weight(name: &str, dims: &[usize], values: &[f32]) -> Message {
    let tensor = Message::default();
    let tensor = (dims.iter()).fold(tensor, |tensor, dim| tensor.number(1, *dim));
    let raw: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    tensor.number(2, 1).texts(8, &[name]).bytes(9, &raw)
}

/// `onnx.ValueInfoProto` of rows of 32-bit floats, any number of them.
fn rows(name: &str) -> Message {
    let any = Message::default().texts(2, &["rows"]);
    let width = Message::default().number(1, WIDTH);
    let shape = Message::default().message(1, any).message(1, width);
    let tensor = Message::default().number(1, 1).message(2, shape);
    let kind = Message::default().message(1, tensor);
    Message::default().texts(1, &[name]).message(2, kind)
}

fn weights(layer: usize) -> (Vec<f32>, Vec<f32>) {
    let value = |n: usize, seed: usize| ((n * 31 + seed * 17) % 97) as f32 / 485.0 - 0.1;
    let matrix = (0..WIDTH * WIDTH).map(|n| value(n, layer)).collect();
    let bias = (0..WIDTH).map(|n| value(n, layer + 7)).collect();
    (matrix, bias)
}

/// Returns the model, from `x` to `y`.
pub(crate) fn model() -> Vec<u8> {
    let mut graph = Message::default().texts(2, &["layers"]);
    let mut input = "x".to_owned();
    for layer in 0..LAYERS {
        let name = |part: &str| format!("{part}{layer}");
        let (w, b) = (name("w"), name("b"));
        let (product, sum) = (name("product"), name("sum"));
        let output = match layer + 1 {
            LAYERS => "y".to_owned(),
            _ => name("out"),
        };
        let (matrix, bias) = weights(layer);
        graph = (graph.message(1, node("MatMul", &[&input, &w], &product)))
            .message(1, node("Add", &[&product, &b], &sum))
            .message(1, node("Relu", &[&sum], &output))
            .message(5, weight(&w, &[WIDTH, WIDTH], &matrix))
            .message(5, weight(&b, &[WIDTH], &bias));
        input = output;
    }
    let graph = graph.message(11, rows("x")).message(12, rows("y"));
    let operators = Message::default().texts(1, &[""]).number(2, 13);
    let model = Message::default().number(1, 8).message(8, operators);
    model.message(7, graph).0
}

/// Returns input of some rows, different for each seed.
pub(crate) fn input(seed: usize, rows: usize) -> Vec<f32> {
    let value = |n: usize| ((n * 13 + seed * 29) % 101) as f32 / 101.0;
    (0..rows * WIDTH).map(value).collect()
}

/// Returns what the model computes from a row.
pub(crate) fn expected(row: &[f32]) -> Vec<f32> {
    (0..LAYERS).fold(row.to_vec(), |row, layer| {
        let (matrix, bias) = weights(layer);
        let column = |n: usize| {
            let products = row.iter().enumerate();
            let products = products.map(|(m, value)| value * matrix[m * WIDTH + n]);
            (products.sum::<f32>() + bias[n]).max(0.0)
        };
        (0..WIDTH).map(column).collect()
    })
}

/// Returns whether some rows of the output are what the model computes from those of the input, up to rounding.
pub(crate) fn is_computed(input: &[f32], output: &[f32]) -> bool {
    let rows = input.len() / WIDTH;
    output.len() == input.len()
        && [0, rows / 2, rows - 1].iter().all(|row| {
            let range = row * WIDTH..(row + 1) * WIDTH;
            let expected = expected(&input[range.clone()]);
            let largest = expected
                .iter()
                .fold(0f32, |largest, value| largest.max(*value));
            let differences = expected.iter().zip(&output[range]);
            let mut differences = differences.map(|(one, other)| (one - other).abs());
            largest > 0.0 && differences.all(|difference| difference <= largest * 1e-4)
        })
}
