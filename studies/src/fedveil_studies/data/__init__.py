"""Data sets that only studies use, and where their files come from. Loading one imports PyTorch."""

from fedveil.data import SourceInfo
from fedveil.data.sources import Later

BLOODMNIST = SourceInfo(
    "blood cells, 28x28 colour, 8 classes",
    "17,092 images",
    "CC BY 4.0",
    Later("fedveil_studies.data.named:load_bloodmnist"),
    files=(("bloodmnist.npz", "bloodmnist_rebuilt_28.npz"),),
    official="MedMNIST v2, https://zenodo.org/records/10519652 (bloodmnist.npz, 35 MB, CC BY 4.0)",
)
MNIST_BY_WRITER = SourceInfo(
    "MNIST digits with their 539 writers, 28x28 grey, 10 classes",
    "70,000 images",
    "CC BY-SA 3.0",
    Later("fedveil_studies.data.named:load_mnist_by_writer"),
    files=(("mnist_by_writer.npz",),),
    official="the images of MNIST (CC BY-SA 3.0) with the writers that QMNIST's extended labels give them, "
    "https://github.com/facebookresearch/qmnist (BSD-3-Clause); the file (12 MB) joins them as train_images, "
    "train_labels, train_writer, test_images, test_labels, test_writer",
    natural=True,
)
CIFAR10_SUBSET = SourceInfo(
    "photographs, 32x32 colour, 10 classes",
    "13,000 images",
    "none stated",
    Later("fedveil_studies.data.named:load_cifar10_subset"),
    files=(("cifar10_subset.npz",),),
    official="CIFAR-10, https://www.cs.toronto.edu/~kriz/cifar.html (about 160 MB, states no licence); the file (37 "
    "MB) holds train_images (10000, 32, 32, 3), its first batch, train_labels, test_images, test_labels, class_names",
)
CMS_INPATIENT = SourceInfo(
    "payments to American hospitals by condition and place (regression)",
    "163,065 rows",
    "public domain (US government)",
    Later("fedveil_studies.data.cms:load_cms_inpatient"),
    files=(("cms_inpatient_drg100_fy2011.csv.gz",), ("cms_providers_geo.csv.gz",)),
    official="Medicare Provider Charge Data, Inpatient, fiscal year 2011 (100 most common DRGs), https://data.cms.gov "
    "(97k6-zzx3; 163,065 rows, public domain); the file needs the columns drg, provider_id, avg_covered_charges, "
    "avg_total_payments",
    natural=True,
)
CMS_OUTPATIENT = SourceInfo(
    "the same for outpatient services (regression)",
    "43,372 rows",
    "public domain (US government)",
    Later("fedveil_studies.data.cms:load_cms_outpatient"),
    files=(("cms_outpatient_apc30_cy2011.csv.gz",), ("cms_providers_geo.csv.gz",)),
    official="Medicare Provider Charge Data, Outpatient, calendar year 2011 (30 APCs), https://data.cms.gov (43,372 "
    "rows, public domain); the file needs the columns apc, provider_id, avg_submitted_charges, avg_total_payments",
    natural=True,
)
FED_HEART = SourceInfo(
    "heart disease in four hospitals, 13 columns, ill or not",
    "740 patients",
    "CC BY 4.0",
    Later("fedveil_studies.data.heart:load_fed_heart"),
    files=(("heart_disease_uci_4_centres.csv",),),
    official="Heart Disease, UCI Machine Learning Repository, https://archive.ics.uci.edu/dataset/45 (CC BY 4.0); the "
    "file (60 kB) joins its four processed files as centre, age, sex, cp, trestbps, chol, fbs, restecg, thalach, "
    "exang, oldpeak, slope, ca, thal, num, with empty places for what is missing",
    natural=True,
)
READMISSION = SourceInfo(
    "stays of diabetic patients in 130 hospitals, 51 columns, back within 30 days or not",
    "99,343 stays",
    "CC BY 4.0",
    Later("fedveil_studies.data.readmission:load_readmission"),
    files=(("diabetes_130_us_hospitals.csv.gz",),),
    official="Diabetes 130-US Hospitals for Years 1999-2008, UCI Machine Learning Repository, "
    "https://archive.ics.uci.edu/dataset/296 (CC BY 4.0); the file (3 MB) is its diabetic_data.csv, gzipped, with "
    "empty places in the place of question marks",
)
SROIE = SourceInfo(
    "scanned receipts with forged words, a class a pixel",
    "200 receipts",
    "CC BY 4.0",
    Later("fedveil_studies.data.sroie:load_sroie"),
    files=(("sroie2019_200_gray768.npz",),),
    official="ICDAR 2019 SROIE, task 1, https://rrc.cvc.uab.es/?ch=13 (CC BY 4.0); the file (22 MB) holds 200 grey "
    "receipts, at most 768 pixels high: pixels, pixel_offsets, shapes, boxes, box_offsets, key_json",
    natural=True,
)
MIXTURE = SourceInfo(
    "made-up users of two kinds, a line each (regression)",
    "2,000 rows",
    "none needed",
    Later("fedveil_studies.data.mixture:load_mixture"),
    natural=True,
)
