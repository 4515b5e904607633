//! The outline of a Burn model (Burn 0.22 and later), for burnstore. Save this file as src/outline.rs, add
//! `mod outline;`, and call it once with an untrained model: `outline::save(&model, "model.outline.bpk")`.
use burn::module::{DisplaySettings, Module, ModuleDisplay, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn_store::{BurnpackStore, ModuleSnapshot};

pub fn save<M: Module + ModuleDisplay>(model: &M, path: &str) -> Result<(), String> {
    let mut walk = Walk::default();
    model.visit(&mut walk);
    let [modules, variants, layouts] = walk.found.map(|members| members.join(","));
    let settings = DisplaySettings::new().with_show_all_attributes(true).with_show_num_parameters(false);
    let display = model.format(settings.with_new_line_after_attribute(false));
    let display = display.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let burn = &BurnpackStore::default_metadata()["version"];
    let kinds = format!(r#""modules":{{{modules}}},"variants":{{{variants}}},"layouts":{{{layouts}}}"#);
    let json = format!(r#"{{"format":1,"burn":"{burn}",{kinds},"display":"{display}"}}"#);
    let store = BurnpackStore::from_file(path).overwrite(path.ends_with(".outline.bpk"));
    model.save_into(&mut store.metadata("burnstore.outline", json)).map_err(|error| error.to_string())
}

#[derive(Default)]
struct Walk {
    names: Vec<String>,      // of the modules that the walk is in
    found: [Vec<String>; 3], // members of "modules", "variants", "layouts"
}

impl ModuleVisitor for Walk {
    fn enter_module(&mut self, name: &str, kind: &str) {
        let path = self.names.join(".");
        let (module, variant) = (format!(r#""{path}":"{kind}""#), format!(r#""{path}":"{name}""#));
        self.found[0].extend((!self.found[0].contains(&module)).then_some(module));
        self.found[1].extend(kind.starts_with("Enum:").then_some(variant));
        self.names.push(name.into());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.names.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let owner = self.names[..self.names.len().max(1) - 1].join(".");
        let is_linear = self.found[0].contains(&format!(r#""{owner}":"Struct:Linear""#));
        if D == 2 && is_linear && self.names.last().is_some_and(|name| name == "weight") {
            let (_, value, mapper) = param.clone().consume(); // a Linear of LinearLayout::Col is saved transposed
            let shape: [usize; D] = core::array::from_fn(|axis| axis + 1);
            let is_col = mapper.on_save(Tensor::zeros(shape, &value.device())).dims() != shape;
            self.found[2].extend(is_col.then(|| format!(r#""{owner}":"Col""#)));
        }
    }
}
