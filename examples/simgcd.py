"""SimGCD (ICCV 2023) in one file: this package's losses and heads in a plain PyTorch loop.

`python examples/simgcd.py` trains on 2,000 images of Fashion-MNIST that are included in the package, with half of the
images of classes 0-4 labelled, and prints the accuracy on the other images. The equations are those of docs/methods.md.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, WeightedRandomSampler
from torchvision import transforms

from ctxgcd.benchmarks import class_lists
from ctxgcd.benchmarks.places import embedded
from ctxgcd.benchmarks.readers.png_sheet import SHEET
from ctxgcd.benchmarks.split import make_split
from ctxgcd.evaluation.accuracy import v2
from ctxgcd.losses.cross_entropy import cross_entropy
from ctxgcd.losses.distill import distill
from ctxgcd.losses.entropy import entropy_gap
from ctxgcd.losses.info_nce import info_nce
from ctxgcd.losses.sup_con import sup_con
from ctxgcd.models import weights
from ctxgcd.models.backbone import cut
from ctxgcd.models.heads import CosineClassifier, Projector

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--images", type=int, default=2000, help="number of images used, from the first on")
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()
if arguments.images < 128:
    parser.error(f"--images is {arguments.images}; give at least 128, the size of a batch")
torch.manual_seed(arguments.seed)

# The split of GCD: D^l is half of the images of the Old classes, D^u is the rest. Class ids: Old first, then New.
classes = class_lists.load("fashion")
manifest = SHEET.manifest(embedded("fashion")).query("part == 'train'").head(arguments.images)
split = make_split(manifest, classes, seed=0, labelled_share=0.5, drawn_order=False)
true, labelled = torch.tensor(split.class_id), torch.tensor((split.role == "labelled").to_numpy())
labels = torch.where(labelled, true, -1)  # the only labels used in training

# Two random views of each image for training, one centre crop for evaluation.
resize = transforms.Resize(73, transforms.InterpolationMode.BICUBIC)
images = [resize(image) for image in SHEET.images(embedded("fashion"), split.path)]
tensor = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)])
train_view = transforms.Compose([transforms.RandomCrop(64), transforms.RandomHorizontalFlip(), tensor])
test_view = transforms.Compose([transforms.CenterCrop(64), tensor])

# An ImageNet backbone cut in two: the trunk is frozen, the tail (the last convolution) and the two heads are trained.
with tempfile.TemporaryDirectory() as folder:
    weights.prepare("tf_efficientnet_lite0", "package", 64, Path(folder, "weights.pt"))
    backbone = cut(weights.load("tf_efficientnet_lite0", 64, Path(folder, "weights.pt")), tail_blocks=1)
start = torch.Generator().manual_seed(arguments.seed)
projector = Projector(backbone.dim, 128, 64, generator=start)
classifier = CosineClassifier(backbone.dim, classes.num_classes, generator=start)

named = [pair for part in (backbone.tail, projector, classifier) for pair in part.named_parameters()]
trained = [(name, value) for name, value in named if value.requires_grad]
decayed = {"params": [value for _, value in trained if value.ndim > 1], "weight_decay": 5e-5}
plain = {"params": [value for _, value in trained if value.ndim <= 1], "weight_decay": 0.0}
optimiser = torch.optim.SGD([decayed, plain], lr=0.03, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, arguments.epochs, eta_min=0.03 * 1e-3)

# About half of a batch is labelled: an image of D^l has weight 1, an image of D^u |D^l| / |D^u|.
chance = torch.where(labelled, 1.0, labelled.sum() / (~labelled).sum())
sampler = WeightedRandomSampler(chance.tolist(), len(images))
for epoch in range(arguments.epochs):
    teacher = 0.07 - 0.03 * min(epoch / 2, 1)  # temperature of the sharpened predictions, 0.07 to 0.04 in 3 epochs
    for ids in DataLoader(range(len(images)), 128, sampler=sampler, drop_last=True):
        views = torch.stack([train_view(images[i]) for i in ids.repeat(2)])  # view 1 of all images, then view 2
        with torch.no_grad():  # 32 at a time is faster on a CPU
            kept = torch.cat([backbone.trunk(part) for part in views.split(32)])
        features = backbone.tail(kept)
        z, cosines = projector(features), classifier(features)
        y, has_label = labels[ids], labelled[ids]
        # L_rep = (1 - lambda) L_InfoNCE + lambda L_SupCon
        representation = 0.65 * info_nce(z, 1.0) + 0.35 * sup_con(z, y, has_label, 0.07)
        # L_cls = (1 - lambda) (L_distill + epsilon (log K - H(p))) + lambda L_CE, with epsilon 1
        unsupervised = distill(cosines, teacher, 0.1) + entropy_gap(cosines, 0.1)
        classification = 0.65 * unsupervised + 0.35 * cross_entropy(cosines, y, has_label, 0.1)
        loss = representation + classification  # the context losses of docs/methods.md would be added here
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    schedule.step()
    print(f"epoch {epoch + 1}/{arguments.epochs}  loss {loss.item():.3f}", flush=True)

# The class of an image of D^u is that of its largest cosine; classes are matched to the true ones over all of D^u.
with torch.no_grad():
    parts = torch.arange(len(images))[~labelled].split(32)
    predicted = [classifier(backbone.features(torch.stack([test_view(images[i]) for i in ids]))) for ids in parts]
score = v2(torch.cat(predicted).argmax(dim=1), true[~labelled], split.old[~labelled.numpy()] == 1)
print("Clustering accuracy (v2, percent) on the images without a label:")
print(f"All {score.all:.1f}  Old {score.old:.1f}  New {score.new:.1f}")
